"""Disables TF32 in convolutions, safely for several threads at once."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from threading import Lock

import torch


class _FullPrecision:
    """cuDNN's flags are process-wide: the first thread that enters sets them, the last restores."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._num_inside = 0
        self._flags: AbstractContextManager[None] = nullcontext()

    def __enter__(self) -> None:
        with self._lock:
            if not self._num_inside and torch.backends.cudnn.is_available():
                self._flags = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
                self._flags.__enter__()
            self._num_inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._num_inside -= 1
            if not self._num_inside:
                flags, self._flags = self._flags, nullcontext()
                flags.__exit__(None, None, None)


_full_precision = _FullPrecision()


def full_precision() -> AbstractContextManager[None]:
    """Convolutions in full float32; by default PyTorch lets cuDNN round them to TF32."""
    return _full_precision
