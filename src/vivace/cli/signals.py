"""Handles Ctrl-C, SIGTERM and SIGHUP: output files are finished, the exit code is 128 + signal."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType

TERMINATING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
SIGNAL_EXIT_CODE = 128  # plus the number of the signal


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM or SIGHUP."""

    def __init__(self, number: int) -> None:
        super().__init__(f"terminated by {signal.Signals(number).name}")
        self.number = number


@contextmanager
def raise_on_termination() -> Iterator[None]:
    """Raise Terminated for the first terminating signal. Signals that are ignored stay ignored."""
    if current_thread() is not main_thread():
        yield
        return
    handled = [number for number in TERMINATING if signal.getsignal(number) is signal.SIG_DFL]
    for number in handled:
        signal.signal(number, _raise)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def _raise(number: int, frame: FrameType | None) -> None:
    for other in TERMINATING:  # a second signal must not interrupt the clean-up
        signal.signal(other, signal.SIG_IGN)
    raise Terminated(number)
