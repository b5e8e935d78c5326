"""A persistent kernel: compiled for the GPU at hand, loaded, launched on every multiprocessor."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from vivace.backends.megakernel import driver
from vivace.backends.megakernel.fp8 import DEPTH, ROWS, pack_fp8
from vivace.backends.megakernel.nvrtc import compile_source
from vivace.errors import BackendUnavailableError
from vivace.model.layers import Block

MAX_BATCH = 8
CHUNK_BYTES = ROWS * (2 * DEPTH + 16)
MIN_CHUNKS = 4
MIN_BLOCKS = 32  # a block has room for this share of the residual stream


def source(name: str) -> str:
    """The text of a kernel, with what the kernels share before it."""
    folder = Path(__file__).parent
    return "".join((folder / part).read_text() for part in ("common.cuh", "stages.cuh", name))


def architecture_of(capability: tuple[int, int]) -> str:
    """The compiler's name of a GPU; Hopper's own gives the computing warps more registers."""
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


def layer_tensors(block: Block, mlp: Pack, others: Pack) -> list[Tensor]:
    """In the order of `Layer` in stages.cuh, its matrices packed."""
    attention = block.self_attn
    assert attention.q_norm is not None
    assert attention.k_norm is not None
    return [
        block.input_layernorm.weight, others(attention.qkv_weight), attention.q_norm.weight,
        attention.k_norm.weight, others(attention.o_proj.weight),
        block.post_attention_layernorm.weight,
        mlp(block.mlp.gate_up_weight), mlp(block.mlp.down_proj.weight),
    ]  # fmt: skip


class KernelSize(Protocol):
    @property
    def options(self) -> list[str]:
        """Compiler flags."""

    @property
    def slot_bytes(self) -> int:
        """Size of a slot of the ring buffer."""


def compile_kernels(sizes: Mapping[str, KernelSize], device: torch.device) -> dict[str, bytes]:
    """Machine code of kernels by name, all compiled at the same time: each takes seconds."""
    architecture = architecture_of(torch.cuda.get_device_capability(device))

    def compile_one(name: str) -> bytes:
        flags = [*sizes[name].options, f"-DSLOT_BYTES={sizes[name].slot_bytes}"]
        return compile_source(source(f"{name}.cu"), architecture, flags)

    with ThreadPoolExecutor() as pool:
        return dict(zip(sizes, pool.map(compile_one, sizes), strict=True))


class Kernel:
    def __init__(self, name: str, code: bytes, slot_bytes: int, device: torch.device) -> None:
        properties = torch.cuda.get_device_properties(device)
        self.num_blocks: int = properties.multi_processor_count
        if self.num_blocks < MIN_BLOCKS:
            raise BackendUnavailableError(
                f"the GPU has {self.num_blocks} multiprocessors; it needs {MIN_BLOCKS}"
            )
        self.most_shared = int(getattr(properties, "shared_memory_per_block_optin", 99 * 2**10))
        self._slot_bytes, self._device = slot_bytes, device
        self._module = driver.Module(code)
        self._function = self._module.function(f"{name}_kernel")
        driver.allow_shared(self._function, self.most_shared)
        layout = self._module.numbers("layout")
        self.shared_bytes, exchange_bytes, self._weights_bytes, self._num_threads = layout
        self.exchange = torch.zeros(2 * exchange_bytes, dtype=torch.uint8, device=device)
        self.control = torch.zeros(4, dtype=torch.int32, device=device)
        self.num_packed_bytes = 0  # weights that are copies of the model's

    def packer(self, *, is_fp8: bool) -> Pack:
        """Converts matrices to the layout that the kernel reads, and counts the bytes of copies."""

        def pack(weight: Tensor) -> Tensor:
            packed = pad_rows(weight)
            packed = pack_fp8(packed) if is_fp8 else packed
            if packed is not weight:
                self.num_packed_bytes += packed.nbytes
            return packed

        return pack

    def pointers(self, tensors: Sequence[Tensor]) -> Tensor:
        """The weights' addresses, as the kernel's struct Weights."""
        for tensor in tensors:
            assert tensor.is_contiguous()
            assert tensor.dtype in (torch.bfloat16, torch.uint8)
        assert len(tensors) * 8 == self._weights_bytes
        self._kept = tensors  # the addresses stay valid
        addresses = [tensor.data_ptr() for tensor in tensors]
        return torch.tensor(addresses, dtype=torch.int64, device=self._device)

    @property
    def num_faults(self) -> int:
        """How many blocks timed out waiting for another."""
        return int(self.control[1])

    def check_shared(self, fixed_bytes: int, batch: int) -> None:
        """Raise an error if the ring buffer of weights would be too small."""
        if self.most_shared - fixed_bytes < MIN_CHUNKS * self._slot_bytes:
            raise BackendUnavailableError(f"too little shared memory for a batch of {batch}")

    def launch(self, request: ctypes.Structure) -> None:
        driver.launch_cooperative(
            self._function, self.num_blocks, self._num_threads, self.most_shared, request
        )


def blocks(layers: torch.nn.ModuleList) -> list[Block]:
    return [cast("Block", layer) for layer in layers]
