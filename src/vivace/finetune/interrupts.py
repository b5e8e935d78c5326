"""Defers Ctrl-C and SIGTERM to the end of a training step, so that a saved state is whole."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType

SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


class Interrupts:
    """The first signal received while signals are deferred."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._frame: FrameType | None = None

    def receive(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:  # a second signal does not wait
            raise KeyboardInterrupt
        self.number, self._frame = number, frame


@contextmanager
def deferred_interrupts() -> Iterator[Interrupts]:
    """Inside, the caller checks `number` between steps. Afterwards the signal takes effect."""
    interrupts = Interrupts()
    if current_thread() is not main_thread():
        yield interrupts
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    handled = [number for number in SIGNALS if before[number] not in (signal.SIG_IGN, None)]
    for number in handled:
        signal.signal(number, interrupts.receive)
    try:
        yield interrupts
    finally:
        for number in handled:
            signal.signal(number, before[number])
        if interrupts.number is not None:
            signal.raise_signal(interrupts.number)
