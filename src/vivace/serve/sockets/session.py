"""The base class of WebSocket sessions: reading, writing, limits, timeouts and cleanup.

A session reads at all times, so that a disconnect is noticed at once, and speaks in tasks. Messages
are JSON objects; subclasses define their types.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from vivace.serve.context import ServeContext
from vivace.serve.errors import Failure, RefusedError, describe
from vivace.serve.strict_json import parse_object

log = logging.getLogger(__name__)

NORMAL, GOING_AWAY, POLICY, BROKEN, RESTART, FULL = 1000, 1001, 1008, 1011, 1012, 1013
MAX_BAD = 16  # invalid messages before the connection is closed
MESSAGE_RATE = 1_000.0  # sustained messages per second; bursts may have MAX_BURST messages
MAX_BURST = 8_192.0
MAX_REASON_BYTES = 123  # the limit of a close frame
DRAIN_POLL_S = 0.1


class SocketSession(ABC):
    """One connection."""

    def __init__(self, websocket: WebSocket, context: ServeContext) -> None:
        self.context = context
        self.idle_s = context.settings.socket_idle_s
        self.is_closed = False
        self._websocket = websocket
        self._lock = asyncio.Lock()  # one writer at a time
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._last_active = time.monotonic()
        self._num_bad = 0
        self._allowance, self._refilled = MAX_BURST, self._last_active

    # -- the protocol ------------------------------------------------------------------------

    async def greet(self) -> None:  # noqa: B027  in most protocols the client sends first
        """Send the messages that precede the client's first."""

    @abstractmethod
    async def handle(self, message: dict[str, Any]) -> None:
        """Handle a message. Its exceptions are sent by `refuse`."""

    @abstractmethod
    async def refuse(self, failure: Failure) -> None:
        """Send an error to the client."""

    @abstractmethod
    def is_busy(self) -> bool:
        """Whether speech is pending that needs no further input from the client."""

    # -- the connection ----------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the connection until either side closes it, then cancel its tasks."""
        self.context.streams.check_open()  # status 503, so that a proxy tries another server
        draining = asyncio.ensure_future(self.context.streams.draining.wait())
        try:
            await self._websocket.accept()
            await self.greet()
            await self._read(draining)
        except WebSocketDisconnect:
            pass
        finally:
            self.is_closed = True
            draining.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def send(self, message: Mapping[str, Any] | bytes) -> None:
        """Send one message. Blocks while the client does not read."""
        is_audio = isinstance(message, bytes)
        data = message if is_audio else json.dumps(message, separators=(",", ":"))
        await self._write({"type": "websocket.send", "bytes" if is_audio else "text": data})

    async def close(self, code: int = NORMAL, reason: str = "") -> None:
        short = reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
        await self._write({"type": "websocket.close", "code": code, "reason": short})
        self._stop_reading()

    def start(self, speech: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task that is cancelled with the session and that a drain waits for."""
        task = self.context.streams.run_held(speech)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    async def _write(self, event: dict[str, Any]) -> None:
        async with self._lock:
            if self.is_closed:
                raise WebSocketDisconnect(GOING_AWAY)
            self.is_closed = event["type"] == "websocket.close"
            try:
                await self._websocket.send(event)
            except RuntimeError:  # uvicorn has closed the connection, e.g. after an oversized frame
                raise WebSocketDisconnect(GOING_AWAY) from None
        self._last_active = time.monotonic()

    def _stop_reading(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._last_active = time.monotonic()
        if not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, WebSocketDisconnect):
                log.error("a WebSocket session failed", exc_info=error)
            self._stop_reading()

    # -- the reader --------------------------------------------------------------------------

    async def _read(self, draining: asyncio.Future[Any]) -> None:
        receiving: asyncio.Task[Any] | None = None
        try:
            while not self._ended.done():
                receiving = receiving or asyncio.ensure_future(self._websocket.receive())
                waited = {receiving, self._ended, *([] if draining.done() else [draining])}
                patience_s = self._patience_s(draining.done())
                await asyncio.wait(waited, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
                if receiving.done():
                    event, receiving = receiving.result(), None
                    if event["type"] == "websocket.disconnect":
                        return
                    await self._take(event)
                elif draining.done() and not self._tasks:
                    await self.close(RESTART, "the server is shutting down")
                elif self._patience_s(False) <= 0:
                    await self._refuse_idle()
        finally:
            if receiving is not None:
                receiving.cancel()

    def _patience_s(self, is_draining: bool) -> float:
        if is_draining:
            return DRAIN_POLL_S
        if self.is_busy():
            return self.idle_s
        return self._last_active + self.idle_s - time.monotonic()

    async def _take(self, event: Mapping[str, Any]) -> None:
        self._last_active = time.monotonic()
        if not self._may_send_more():
            await self.close(POLICY, f"more than {MESSAGE_RATE:.0f} messages per second")
            return
        try:
            text = event.get("text")
            if text is None:
                raise RefusedError("messages must be JSON text, not binary", code="not_text")
            await self.handle(parse_object(text))
        except WebSocketDisconnect:
            raise
        except Exception as error:
            await self._answer(describe(error))

    async def _answer(self, failure: Failure) -> None:
        await self.refuse(failure)
        self._num_bad += 1
        if failure.status == 500 and not self.is_closed:
            await self.close(BROKEN, failure.message)
        elif self._num_bad >= MAX_BAD and not self.is_closed:
            await self.close(POLICY, f"{MAX_BAD} messages were invalid")

    async def _refuse_idle(self) -> None:
        failure = Failure(408, f"no message for {self.idle_s:g} s", "idle")
        await self.refuse(failure)
        if not self.is_closed:
            await self.close(NORMAL, failure.message)

    def _may_send_more(self) -> bool:
        now = time.monotonic()
        gained = (now - self._refilled) * MESSAGE_RATE
        self._allowance, self._refilled = min(MAX_BURST, self._allowance + gained) - 1, now
        return self._allowance >= 0
