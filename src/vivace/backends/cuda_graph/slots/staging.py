"""Asynchronous copies to the device and to the host through pinned memory.

PyTorch reuses pinned memory only after its copies have finished. `StagedNumbers` and `HostCopies`
keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MIN_SIZE = 12  # of memory for a copy to the host, as a power of two
_NUMPY = {torch.int64: np.int64, torch.int32: np.int32, torch.float32: np.float32}


def pin(values: object, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor that the device can copy asynchronously."""
    host = torch.from_numpy(np.asarray(values, dtype=_NUMPY[dtype]))
    return host.pin_memory() if device.type == "cuda" else host


def upload(values: object, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Copy to the device asynchronously."""
    return pin(values, dtype, device).to(device, non_blocking=True)


class HostCopies:
    """Copies of results to the host, through pinned memory that is kept here.

    When PyTorch frees pinned memory, it records an event on the stream of its last copy. That fails
    while another thread captures a graph on this stream. All copies start on one stream. A copy
    may therefore reuse the memory of an earlier one that has not been read.
    """

    def __init__(self) -> None:
        self._unused: dict[int, list[Tensor]] = {}  # by size

    def start(self, tensor: Tensor) -> Callable[[], NDArray[Any]]:
        """Start a copy; the returned call waits for it and may be repeated."""
        size = 1 << max(MIN_SIZE, (tensor.nbytes - 1).bit_length())
        unused = self._unused.setdefault(size, [])
        try:
            memory = unused.pop()  # other threads may append to the list
        except IndexError:
            memory = torch.empty(size, dtype=torch.uint8, pin_memory=tensor.is_cuda)
        return _HostCopy(tensor, memory, unused).wait


class _HostCopy:
    """A copy in progress. Its memory returns to `unused` with the last reference to the copy."""

    def __init__(self, tensor: Tensor, memory: Tensor, unused: list[Tensor]) -> None:
        self._memory, self._unused = memory, unused
        self._host = memory[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        self._host.copy_(tensor, non_blocking=True)
        self._done = torch.cuda.Event() if tensor.is_cuda else None
        if self._done is not None:
            self._done.record()
        self._result: NDArray[Any] | None = None

    def wait(self) -> NDArray[Any]:
        if self._result is None:
            if self._done is not None:
                self._done.synchronize()
            self._result = self._host.numpy().copy()
        return self._result

    def __del__(self) -> None:
        self._unused.append(self._memory)


class StagedNumbers:
    """Numbers at a fixed address of the device, and the pinned memory that they are copied from.

    Write `numbers` between `clear` and `copy`.
    """

    def __init__(
        self,
        padding: NDArray[np.int64],
        device: torch.device,
        stream: torch.cuda.Stream | None,  # of all copies; None: the device is not a GPU
    ) -> None:
        self._padding, self._stream = padding, stream
        self._host = pin(padding.copy(), torch.int64, device)
        self.numbers: NDArray[np.int64] = self._host.numpy()
        self.tensor = self._host.to(device, copy=True)
        self._copied = torch.cuda.Event() if stream is not None else None

    def clear(self) -> None:
        """Set all numbers to padding, after the device has read those of the last copy."""
        if self._copied is not None:
            self._copied.synchronize()
        self.numbers[:] = self._padding

    def copy(self) -> None:
        """Copy the numbers to the device asynchronously."""
        self.tensor.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record(self._stream)


class RowNumbers:
    """Slot rows of the current batch on the device, copied only when they change.

    All readers and writers of `tensor` run on one CUDA stream.
    """

    def __init__(self, size: int, padding: int, device: torch.device) -> None:
        self._padding = padding
        self.tensor = torch.full((size,), padding, device=device)
        self._written = [padding] * size

    def write(self, rows: Sequence[int], batch: int) -> None:
        """Write these rows, followed by padding up to the batch size."""
        wanted = [*rows, *[self._padding] * (batch - len(rows))]
        if self._written[:batch] != wanted:
            host = pin(wanted, torch.int64, self.tensor.device)
            self.tensor[:batch].copy_(host, non_blocking=True)
            self._written[:batch] = wanted

    def park(self) -> None:
        """Set all rows to padding."""
        self.tensor.fill_(self._padding)
        self._written = [self._padding] * len(self._written)
