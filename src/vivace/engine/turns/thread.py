"""The engine's thread and the inbox through which other threads reach it."""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread

Message = Callable[[], object]


class Inbox:
    """Messages to the engine's thread, in the order in which they were posted.

    `deque.append` and `SimpleQueue.put` are atomic and reentrant, so a message may come from any
    thread, a finalizer or a signal handler.
    """

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._wakeups: SimpleQueue[None] = SimpleQueue()

    @property
    def is_empty(self) -> bool:
        return not self._messages and self._wakeups.empty()

    def post(self, message: Message) -> None:
        """Deliver the message and wake the engine's thread if it is idle."""
        self._messages.append(message)
        self._wakeups.put(None)

    def post_quietly(self, message: Message) -> None:
        """Deliver the message with the next turn or wake-up, whichever comes first."""
        self._messages.append(message)

    def wake(self) -> None:
        """Wake the engine's thread, which then checks for work."""
        self._wakeups.put(None)

    def wait(self, timeout_s: float | None) -> None:
        """Wait for a wake-up; None: without a limit."""
        with suppress(Empty):
            self._wakeups.get(timeout=timeout_s)

    def take(self) -> Message | None:
        """The next message; None if there is none, and earlier wake-ups are discarded."""
        if self._messages:
            return self._messages.popleft()
        while not self._wakeups.empty():
            self._wakeups.get()
            if self._messages:
                return self._messages.popleft()
        return None


def start_thread(
    work: Callable[[], None], inbox: Inbox
) -> tuple[Thread, weakref.finalize[..., Thread]]:
    """Start `work` in a daemon thread. Returns the thread and a finalizer that waits for its end.

    `work` may hold the last reference to the engine: its end frees the backend. At exit the
    finalizer ends the thread, because a daemon thread must not be stopped inside the backend.
    """
    owned = [work]

    def run() -> None:
        try:
            owned.pop()()
        finally:
            stop.detach()

    thread = Thread(target=run, name="vivace-engine", daemon=True)
    stop = weakref.finalize(thread, _stop, inbox, thread)
    thread.start()
    return thread, stop


def _stop(inbox: Inbox, thread: Thread) -> None:
    inbox.post(sys.exit)
    thread.join()
