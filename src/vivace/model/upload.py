"""Copies tensors of mapped files to a GPU, in several threads and through pinned memory.

A direct copy is several times slower: the driver copies pageable memory in one thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

log = logging.getLogger(__name__)

NUM_THREADS = 8
BUFFER_BYTES = 2**22


def uploader(device: torch.device) -> Callable[[Tensor], Tensor]:
    """A function that returns a finished copy of a contiguous CPU tensor on this device.

    Several threads may call it at the same time. A tensor for the CPU is not copied.
    """
    if device.type != "cuda":
        return partial(Tensor.to, device=device)
    index = torch.cuda.current_device() if device.index is None else device.index
    return _Uploader(torch.device("cuda", index)).copy


class _Uploader:
    """Every thread has its own buffers and CUDA stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copiers = threading.local()
        self._can_pin = True  # set to False by any thread, and never back

    def copy(self, tensor: Tensor) -> Tensor:
        copier = self._copier() if self._can_pin else None
        return tensor.to(self._device) if copier is None else copier.copy(tensor)

    def _copier(self) -> _PinnedCopier | None:
        if not hasattr(self._copiers, "own"):
            try:
                self._copiers.own = _PinnedCopier(self._device)
            except RuntimeError as error:  # the system limits pinned memory
                log.info("weights are copied without pinned memory: %s", error)
                self._can_pin = False
                return None
        copier: _PinnedCopier = self._copiers.own
        return copier


class _PinnedCopier:
    """Copies through two pinned buffers on a CUDA stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._buffers = [
            torch.empty(BUFFER_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)
        ]
        self._events = [torch.cuda.Event() for _ in self._buffers]

    def copy(self, tensor: Tensor) -> Tensor:
        out = torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device)
        # The memory of `out` may still be in use by operations on its last owner.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        parts = zip(_pieces(tensor), _pieces(out), strict=True)
        for number, (source, target) in enumerate(parts):
            buffer = self._buffers[number % 2][: len(source)]
            event = self._events[number % 2]
            event.synchronize()  # the last copy from this buffer
            np.copyto(buffer.numpy(), source.numpy())  # in this thread, without PyTorch's own
            with torch.cuda.stream(self._stream):
                target.copy_(buffer, non_blocking=True)
                event.record(self._stream)
        self._stream.synchronize()
        return out


def _pieces(tensor: Tensor) -> tuple[Tensor, ...]:
    """The bytes of a contiguous tensor, `BUFFER_BYTES` each."""
    return tensor.reshape(-1).view(torch.uint8).split(BUFFER_BYTES)
