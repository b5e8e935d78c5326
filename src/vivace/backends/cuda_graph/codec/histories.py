"""Past inputs of the codec's causal layers, for every slot."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vivace.backends.cuda_graph.codec import kernels
from vivace.backends.cuda_graph.launch_sizes import power_of_two

ALIGNMENT = 4  # float32 numbers: 16 bytes
CLEARED = 8192  # numbers per block


class Histories:
    """One float32 table of all slots, and a view per layer."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._dtypes: list[torch.dtype] = []
        self._views: list[Tensor] = []
        self._table = torch.empty(0)

    def add(self, num_elements: int, dtype: torch.dtype = torch.float32) -> int:
        """Reserve elements for every slot; returns the number for `view`."""
        count = num_elements * dtype.itemsize // 4
        self._sizes.append(-(-count // ALIGNMENT) * ALIGNMENT)
        self._dtypes.append(dtype)
        return len(self._sizes) - 1

    def allocate(self, num_slots: int, device: torch.device) -> Tensor:
        """The table: [slots, history of all layers]."""
        self._table = torch.zeros(num_slots, sum(self._sizes), device=device)
        parts = self._table.split(self._sizes, dim=1)
        self._views = [p.view(dtype) for p, dtype in zip(parts, self._dtypes, strict=True)]
        return self._table

    def clear(self, slots: Tensor) -> None:
        """Set the histories of these slots to 0, at the memory's bandwidth."""
        size = self._table.shape[1]
        grid = (-(-size // CLEARED), len(slots))
        kernels.clear_kernel[grid](self._table, slots, size, BLOCK=CLEARED)

    def view(self, number: int) -> Tensor:
        """[slots, elements] in the layer's dtype, contiguous within a slot."""
        return self._views[number]


@dataclass(frozen=True, slots=True)
class Past:
    """The histories of the slots of a pass."""

    histories: Histories
    slots: Tensor  # [B]
    num_seen: Tensor  # frames decoded so far, of all slots
    rotations: Tensor  # of this chunk's positions: [B, T, 2, head_dim / 2], cosines and sines


def keep(x: Tensor, history: Tensor, slots: Tensor, width: int) -> None:
    """Append x to the slots' history and drop the oldest columns."""
    batch, length, size = x.shape
    blocks = history_blocks(width)
    kernels.keep_kernel[(-(-size // blocks["BLOCK_C"]), batch)](
        x, history, slots, length, width, size, history.stride(0), **blocks
    )


def history_blocks(width: int) -> dict[str, int]:
    """Tile of a kernel that moves `width` columns of history."""
    block_t = power_of_two(width)
    return {"BLOCK_T": block_t, "BLOCK_C": max(16, 2_048 // block_t)}
