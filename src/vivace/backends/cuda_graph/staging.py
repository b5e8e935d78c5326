"""Numbers on their way to the device: written into pinned memory and copied asynchronously.

PyTorch hands pinned memory out again only when the copies from it are over, so nothing here is
kept to be written a second time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_NUMPY = {torch.int64: np.int64, torch.int32: np.int32, torch.float32: np.float32}


def stage(num_numbers: int, device: torch.device) -> Tensor:
    """Memory for int64 numbers, to be written through its `numpy()` and copied once."""
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
    """The rows of a batch's slots on the device, where graphs read them; copied when they change.

    All that reads or writes `tensor` is queued on one stream.
    """

    def __init__(self, size: int, padding: int, device: torch.device) -> None:
        self._padding = padding
        self.tensor = torch.full((size,), padding, device=device)
        self._written = [padding] * size

    def write(self, rows: Sequence[int], batch: int) -> None:
        """These rows, and padding up to the size of the batch."""
        wanted = [*rows, *[self._padding] * (batch - len(rows))]
        if self._written[:batch] != wanted:
            host = pin(wanted, torch.int64, self.tensor.device)
            self.tensor[:batch].copy_(host, non_blocking=True)
            self._written[:batch] = wanted

    def park(self) -> None:
        """Padding everywhere."""
        self.tensor.fill_(self._padding)
        self._written = [self._padding] * len(self._written)
