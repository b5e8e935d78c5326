"""A persistent kernel: compiled for the installed GPU, loaded, launched on every multiprocessor."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from ctypes import c_int64, c_uint32, c_uint64
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vivace.backends.cuda import driver
from vivace.backends.cuda.nvrtc import compile_source
from vivace.backends.cuda_graph.compile import is_collecting
from vivace.backends.megakernel.fp8 import DEPTH, FP8_CHUNK_BYTES, ROWS, pack_fp8
from vivace.errors import BackendUnavailableError
from vivace.model.config import PredictorConfig, TalkerConfig
from vivace.model.layers import Block

MAX_BATCH = 8
CHUNK_BYTES = ROWS * (2 * DEPTH + 16)
MIN_CHUNKS = 4
MIN_BLOCKS = 32  # a block holds at most 1/32 of the residual stream


def source(name: str) -> str:
    """Source of a kernel, with the shared headers in front."""
    folder = Path(__file__).parent
    return "".join((folder / part).read_text() for part in ("common.cuh", "stages.cuh", name))


def arguments_type(code: str) -> type[ctypes.Structure]:
    """The `struct KernelArguments` of a kernel's source, for ctypes."""
    body = code.partition("struct KernelArguments {")[2].partition("\n};")[0]
    members: list[tuple[str, Any]] = []
    for kind, names in re.findall(r"^ +(?:const )?([\w ]+\*|\w+) ([\w, ]+);", body, re.MULTILINE):
        c_type = c_uint64 if kind.endswith("*") else {"s64": c_int64, "u32": c_uint32}[kind]
        members += [(name, c_type) for name in names.split(", ")]
    return type("KernelArguments", (ctypes.Structure,), {"_fields_": members})


def architecture_of(capability: tuple[int, int]) -> str:
    """Compiler target. `sm_90a` gives the computing warps more registers on Hopper."""
    return "sm_90a" if capability == (9, 0) else "sm_{}{}".format(*capability)


def head_bytes(head_dim: int) -> int:
    """Size of a head's vector in shared memory; HEAD_BYTES in common.cuh."""
    return 2 * head_dim + 16


def padded(size: int) -> int:
    """A row's size in whole chunks; `padded` in common.cuh."""
    return -(-size // DEPTH) * DEPTH


Pack = Callable[[Tensor], Tensor]


def pad_rows(weight: Tensor) -> Tensor:
    """Rows [n, depth], padded with zeros to a multiple of DEPTH; a copy only where needed."""
    depth = weight.shape[1]
    return weight if depth % DEPTH == 0 else F.pad(weight, (0, padded(depth) - depth))


def layer_tensors(layers: nn.ModuleList, mlp: Pack, others: Pack) -> list[Tensor]:
    """Tensors of all layers in the order of `Layer` in stages.cuh, with packed matrices."""
    tensors: list[Tensor] = []
    for block in cast("Iterable[Block]", layers):
        attention = block.self_attn
        assert attention.q_norm is not None
        assert attention.k_norm is not None
        tensors += [
            block.input_layernorm.weight, others(attention.qkv_weight), attention.q_norm.weight,
            attention.k_norm.weight, others(attention.o_proj.weight),
            block.post_attention_layernorm.weight,
            mlp(block.mlp.gate_up_weight), mlp(block.mlp.down_proj.weight),
        ]  # fmt: skip
    return tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSize:
    """Dimensions of a transformer stack that a kernel is compiled for."""

    hidden: int
    inter: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    eps: float
    fp8_mlp: int = 0  # 1: MLP matrices are in e4m3
    fp8_others: int = 0

    @property
    def mixed(self) -> int:
        return self.heads * self.head_dim

    @property
    def options(self) -> list[str]:
        """Compiler flags."""
        numbers = {field.name: getattr(self, field.name) for field in fields(self)}
        numbers["eps"] = f"{self.eps!r}f"
        numbers["softmax_scale"] = f"{self.head_dim**-0.5!r}f"
        return [f"-D{name.upper()}={value}" for name, value in numbers.items()]

    @property
    def slot_bytes(self) -> int:
        """Size of a slot in the ring buffer: one chunk of weights."""
        return FP8_CHUNK_BYTES if self.fp8_others else CHUNK_BYTES

    def fits(self, max_group: int) -> bool:
        """Whether the stages support this stack; stages.cuh asserts the same."""
        return (
            self.head_dim in (64, 128)
            and self.heads % self.kv_heads == 0
            and self.heads <= max_group * self.kv_heads
            and not any(size % 64 for size in (self.hidden, self.inter))
            and self.hidden <= 2048
        )


def stack_sizes(config: TalkerConfig | PredictorConfig) -> dict[str, Any]:
    """Arguments of `StackSize`."""
    return {
        "hidden": config.hidden_size,
        "inter": config.intermediate_size,
        "heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "layers": config.num_hidden_layers,
        "eps": config.rms_norm_eps,
    }


def start_compiling(
    sizes: Mapping[str, StackSize], device: torch.device
) -> dict[str, Future[bytes]]:
    """Machine code by kernel name. Kernels compile in threads, because each takes seconds."""
    architecture = architecture_of(torch.cuda.get_device_capability(device))

    def compile_one(name: str) -> bytes:
        flags = [*sizes[name].options, f"-DSLOT_BYTES={sizes[name].slot_bytes}"]
        try:
            return compile_source(source(f"{name}.cu"), architecture, flags)
        except BackendUnavailableError as error:
            raise BackendUnavailableError(f"{name}.cu: {error}") from error

    pool = ThreadPoolExecutor(len(sizes))
    jobs = {name: pool.submit(compile_one, name) for name in sizes}
    pool.shutdown(wait=False)  # the threads end with their jobs
    return jobs


class Kernel:
    def __init__(self, name: str, code: bytes, slot_bytes: int, device: torch.device) -> None:
        properties = torch.cuda.get_device_properties(device)
        self.num_blocks: int = properties.multi_processor_count
        if self.num_blocks < MIN_BLOCKS:
            raise BackendUnavailableError(
                f"the GPU has {self.num_blocks} multiprocessors; the megakernel needs {MIN_BLOCKS}"
            )
        self.most_shared = int(getattr(properties, "shared_memory_per_block_optin", 99 * 2**10))
        self._slot_bytes, self._device = slot_bytes, device
        self._arguments = arguments_type(source(f"{name}.cu"))
        self._module = driver.Module(code)
        self._function = self._module.function(f"{name}_kernel")
        driver.allow_shared(self._function, self.most_shared)
        layout = self._module.numbers("layout")
        self.shared_bytes, exchange_bytes, self._weights_bytes, self._num_threads = layout
        self._exchange = torch.zeros(2 * exchange_bytes, dtype=torch.uint8, device=device)
        self._control = torch.zeros(4, dtype=torch.int32, device=device)
        self.num_packed_bytes = 0  # weights that are copies of the model's

    def packer(self, *, is_fp8: bool) -> Pack:
        """A function that converts matrices to the kernel's layout and counts copied bytes."""

        def pack(weight: Tensor) -> Tensor:
            packed = pad_rows(weight)
            packed = pack_fp8(packed) if is_fp8 else packed
            if packed is not weight:
                self.num_packed_bytes += packed.nbytes
            return packed

        return pack

    def set_weights(self, tensors: Sequence[Tensor]) -> None:
        """Pass the addresses of these weights, as the kernel's struct Weights, to every launch."""
        for tensor in tensors:
            assert tensor.is_contiguous()
            assert tensor.dtype in (torch.bfloat16, torch.uint8)
        assert len(tensors) * 8 == self._weights_bytes
        self._kept = tensors  # keeps the addresses valid
        addresses = [tensor.data_ptr() for tensor in tensors]
        self._weights = torch.tensor(addresses, dtype=torch.int64, device=self._device)

    @property
    def num_faults(self) -> int:
        """Number of blocks that timed out while waiting for another block."""
        return int(self._control[1])

    def check_shared(self, fixed_bytes: int, batch: int) -> None:
        """Raise an error if the ring buffer of weights would be too small."""
        if self.most_shared - fixed_bytes < MIN_CHUNKS * self._slot_bytes:
            raise BackendUnavailableError(f"too little shared memory for a batch of {batch}")

    def launch(self, **arguments: Tensor | int | None) -> None:
        """Launch with these `KernelArguments`, besides those that every kernel has."""
        if is_collecting():
            return
        arguments |= {
            "weights": self._weights,
            "exchange": self._exchange,
            "control": self._control,
            "shared_bytes": self.most_shared,
        }
        request = self._arguments()
        for name, *_ in self._arguments._fields_:
            value = arguments.pop(name)
            setattr(request, name, value.data_ptr() if isinstance(value, Tensor) else value or 0)
        assert not arguments, f"the kernel has no argument {[*arguments]}"
        driver.launch_cooperative(
            self._function, self.num_blocks, self._num_threads, self.most_shared, request
        )
