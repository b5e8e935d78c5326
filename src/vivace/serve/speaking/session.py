"""The base class of sessions over WebSockets and Wyoming: reading, tasks, idle time and drain.

A session reads at all times, so that a disconnect is noticed at once, and speaks in tasks.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from vivace.serve.context import ServeContext
from vivace.serve.errors import Failure

M = TypeVar("M")  # a message of the client

DRAIN_POLL_S = 0.1


class Session(ABC, Generic[M]):
    """One connection."""

    def __init__(self, context: ServeContext) -> None:
        self.context = context
        self.idle_s = context.settings.socket_idle_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._last_active = time.monotonic()

    @abstractmethod
    async def receive(self) -> M | None:
        """The next message. None: the client has disconnected."""

    @abstractmethod
    async def take(self, message: M) -> None:
        """Handle a message."""

    @abstractmethod
    def is_busy(self) -> bool:
        """Whether speech is pending that needs no further input from the client."""

    @abstractmethod
    async def end_idle(self, failure: Failure) -> None:
        """End the session after `idle_s` without a message."""

    @abstractmethod
    async def end_drained(self) -> None:
        """End the session before the server stops; no speech is active."""

    def start(self, speech: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task that is cancelled with the session and that a drain waits for."""
        task = self.context.streams.run_held(speech)
        self._tasks.add(task)
        task.add_done_callback(self._remove_task)
        return task

    async def read(self) -> None:
        """Read until either side ends the session, then cancel its tasks."""
        draining = asyncio.ensure_future(self.context.streams.draining.wait())
        receiving: asyncio.Task[M | None] | None = None
        try:
            while not self._ended.done():
                receiving = receiving or asyncio.ensure_future(self.receive())
                waited: set[asyncio.Future[Any]] = {receiving, self._ended}
                waited |= set() if draining.done() else {draining}
                timeout_s = self._receive_timeout_s(draining.done())
                await asyncio.wait(waited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                if receiving.done():
                    message, receiving = receiving.result(), None
                    if message is None:
                        return
                    self._last_active = time.monotonic()
                    await self.take(message)
                elif draining.done() and not self._tasks:
                    await self.end_drained()
                elif self._receive_timeout_s(False) <= 0:
                    await self.end_idle(Failure(408, f"no message for {self.idle_s:g} s", "idle"))
        finally:
            await cancel_all([draining, *self._tasks, *([receiving] if receiving else [])])

    def _receive_timeout_s(self, is_draining: bool) -> float:
        """How long to wait for a message. 0 or less: the client was idle for too long."""
        if is_draining:
            return DRAIN_POLL_S
        if self.is_busy():
            return self.idle_s
        return self._last_active + self.idle_s - time.monotonic()

    def _stop_reading(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def _remove_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._last_active = time.monotonic()


async def cancel_all(tasks: list[asyncio.Task[Any]]) -> None:
    # Repeated: before Python 3.12, a completed wait_for suppresses a cancellation.
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending)
    await asyncio.gather(*tasks, return_exceptions=True)  # retrieves their exceptions
