"""A persistent kernel: compiled for the GPU at hand, loaded, launched on every multiprocessor."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from vivace.backends.megakernel import driver
from vivace.backends.megakernel.nvrtc import compile_source
from vivace.errors import BackendUnavailableError
from vivace.model.layers import Block

MAX_BATCH = 8
CHUNK_BYTES = 8 * (2 * 1024 + 16)
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


Pack = Callable[[Tensor], Tensor]


def as_it_is(weight: Tensor) -> Tensor:
    return weight


def layer_tensors(block: Block, mlp: Pack = as_it_is, others: Pack = as_it_is) -> list[Tensor]:
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


class Kernel:
    def __init__(
        self, name: str, options: Sequence[str], slot_bytes: int, device: torch.device
    ) -> None:
        properties = torch.cuda.get_device_properties(device)
        self.num_blocks: int = properties.multi_processor_count
        if self.num_blocks < MIN_BLOCKS:
            raise BackendUnavailableError(
                f"the GPU has {self.num_blocks} multiprocessors; it needs {MIN_BLOCKS}"
            )
        self.most_shared = int(getattr(properties, "shared_memory_per_block_optin", 99 * 2**10))
        self._slot_bytes, self._device = slot_bytes, device
        flags = [*options, f"-DSLOT_BYTES={slot_bytes}"]
        architecture = architecture_of((properties.major, properties.minor))
        self._module = driver.Module(compile_source(source(f"{name}.cu"), architecture, flags))
        self._function = self._module.function(f"{name}_kernel")
        driver.allow_shared(self._function, self.most_shared)
        layout = self._module.numbers("layout")
        self.shared_bytes, exchange_bytes, self._weights_bytes, self._num_threads = layout
        self.exchange = torch.zeros(2 * exchange_bytes, dtype=torch.uint8, device=device)
        self.control = torch.zeros(4, dtype=torch.int32, device=device)

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
    def num_packed_bytes(self) -> int:
        """Of weights that are copies of the model's."""
        return sum(tensor.nbytes for tensor in self._kept if tensor.dtype == torch.uint8)

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
