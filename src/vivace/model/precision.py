"""Disables TF32 in convolutions, safely for several threads at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock

import torch


class SharedSetting:
    """A process-wide setting: the first thread that enters sets it, the last one restores it."""

    def __init__(self, make: Callable[[], AbstractContextManager[None]]) -> None:
        self._make = make
        self._lock = Lock()
        self._num_inside = 0
        self._made: AbstractContextManager[None] = nullcontext()

    @contextmanager
    def held(self) -> Iterator[None]:
        with self._lock:
            if not self._num_inside:
                made = self._make()
                made.__enter__()
                self._made = made
            self._num_inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_inside -= 1
                if not self._num_inside:
                    self._made.__exit__(None, None, None)


def _forbid_tf32() -> AbstractContextManager[None]:
    if not torch.backends.cudnn.is_available():
        return nullcontext()
    return torch.backends.cudnn.flags(enabled=True, allow_tf32=False)


_no_tf32 = SharedSetting(_forbid_tf32)  # process-wide, as the flags themselves


def full_precision() -> AbstractContextManager[None]:
    """Convolutions in full float32; by default PyTorch lets cuDNN round them to TF32."""
    return _no_tf32.held()
