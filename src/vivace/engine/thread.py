"""The engine's thread: it may own the last reference to the engine, and is waited for at exit."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

Mail = SimpleQueue[Callable[[], object] | None]


def start_thread(
    work: Callable[[], None], mail: Mail
) -> tuple[Thread, weakref.finalize[..., Thread]]:
    """`work` may hold the last reference to the engine: its end frees the backend.

    A daemon thread must not be stopped inside the backend at exit, so that waits for its end.
    """
    owned = [work]

    def run() -> None:
        try:
            owned.pop()()
        finally:
            stop.detach()

    thread = Thread(target=run, name="vivace-engine", daemon=True)
    stop = weakref.finalize(thread, _stop, mail, thread)
    thread.start()
    return thread, stop


def _stop(mail: Mail, thread: Thread) -> None:
    mail.put(sys.exit)
    thread.join()
