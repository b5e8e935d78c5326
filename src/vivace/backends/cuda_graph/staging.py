"""Asynchronous copies of numbers to the device through pinned memory.

PyTorch reuses pinned memory only after its copies have finished, so buffers are not kept here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_NUMPY = {torch.int64: np.int64, torch.int32: np.int32, torch.float32: np.float32}


def stage(num_numbers: int, device: torch.device) -> Tensor:
    """Pinned int64 memory. Write it through `numpy()` and copy it once."""
    is_pinned = device.type == "cuda"
    return torch.empty(num_numbers, dtype=torch.int64, pin_memory=is_pinned)


def pin(values: object, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor that the device can copy asynchronously."""
    host = torch.from_numpy(np.asarray(values, dtype=_NUMPY[dtype]))
    return host.pin_memory() if device.type == "cuda" else host


def upload(values: object, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Copy to the device asynchronously."""
    return pin(values, dtype, device).to(device, non_blocking=True)


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
