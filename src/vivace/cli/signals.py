"""Handles SIGTERM and SIGHUP like Ctrl-C: files are finished, the exit code names the signal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType

ENDS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Terminated(KeyboardInterrupt):
    """The process was asked to end."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


@contextmanager
def orderly_end() -> Iterator[None]:
    """Signals that would end the process raise Terminated, once; ignored ones stay ignored."""
    if current_thread() is not main_thread():
        yield
        return
    heard = [number for number in ENDS if signal.getsignal(number) is signal.SIG_DFL]
    for number in heard:
        signal.signal(number, _raise)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, signal.SIG_DFL)


def _raise(number: int, frame: FrameType | None) -> None:
    for other in ENDS:  # a second signal must not interrupt the clean-up
        signal.signal(other, signal.SIG_IGN)
    raise Terminated(number)
