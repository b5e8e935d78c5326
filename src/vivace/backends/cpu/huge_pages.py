"""Integer weights in huge pages.

A frame reads all weights once. With pages of 4 KB a CPU looks up an address every 4 KB, which takes
longer still in a virtual machine. The weights move: memory holds one copy.
"""

from __future__ import annotations

import contextlib
import mmap
from math import prod

import torch
from torch import Tensor, nn

MIN_BYTES = 64 << 20  # smaller models gain nothing
CHUNK_BYTES = 64 << 20
ALIGNMENT = 64


class HugePages:
    """Memory that the system backs with huge pages where it can."""

    def __init__(self) -> None:
        self._chunk: mmap.mmap | None = None
        self._offset = 0

    def move(self, tensor: Tensor) -> Tensor:
        """A copy of the tensor in this memory."""
        num_bytes = tensor.numel() * tensor.element_size()
        if self._chunk is None or self._offset + num_bytes > len(self._chunk):
            self._chunk, self._offset = _allocate(max(CHUNK_BYTES, num_bytes)), 0
        made = torch.frombuffer(
            self._chunk, dtype=tensor.dtype, count=prod(tensor.shape), offset=self._offset
        )
        self._offset += -(-num_bytes // ALIGNMENT) * ALIGNMENT
        return made.view(tensor.shape).copy_(tensor)


def move_weights(model: nn.Module) -> None:
    """Move the weights of quantized layers. Does nothing for small models and other systems."""
    layers = [
        layer
        for layer in model.modules()
        if isinstance(layer, nn.Linear) and not layer.weight.is_floating_point()
    ]
    total = sum(layer.weight.numel() * layer.weight.element_size() for layer in layers)
    if total < MIN_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    pages = HugePages()
    for layer in layers:
        layer.weight = pages.move(layer.weight)


def _allocate(num_bytes: int) -> mmap.mmap:
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return mmap.mmap(-1, num_bytes)
    # Private: shared memory has huge pages only on systems that are set up for it.
    chunk = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        chunk.madvise(mmap.MADV_HUGEPAGE)
    return chunk
