"""The base class of WebSocket sessions: messages as JSON objects, their limits and errors."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from vivace.serve.context import ServeContext
from vivace.serve.errors import Failure, RefusedError, describe
from vivace.serve.input.strict_json import parse_object
from vivace.serve.speaking.session import Session

log = logging.getLogger(__name__)

NORMAL, GOING_AWAY, POLICY, BROKEN, RESTART, FULL = 1000, 1001, 1008, 1011, 1012, 1013
MAX_BAD = 16  # invalid messages before the connection is closed
MESSAGE_RATE = 1_000.0  # sustained messages per second; bursts may have MAX_BURST messages
MAX_BURST = 8_192.0
MAX_REASON_BYTES = 123  # the limit of a close frame

Event = Mapping[str, Any]  # of ASGI


class SocketSession(Session[Event]):
    """One WebSocket. Subclasses define the types of messages."""

    def __init__(self, websocket: WebSocket, context: ServeContext) -> None:
        super().__init__(context)
        self.is_closed = False
        self._websocket = websocket
        self._lock = asyncio.Lock()  # one writer at a time
        self._num_bad = 0
        self._allowance, self._refilled = MAX_BURST, self._last_active

    async def greet(self) -> None:
        """Send the messages that precede the client's first."""

    @abstractmethod
    async def handle(self, message: dict[str, Any]) -> None:
        """Handle a message. Its exceptions are sent by `refuse`."""

    @abstractmethod
    async def refuse(self, failure: Failure) -> None:
        """Send an error to the client."""

    async def run(self) -> None:
        """Serve the connection until either side closes it."""
        self.context.streams.check_open()  # status 503, so that a proxy tries another server
        try:
            await self._websocket.accept()
            await self.greet()
            await self.read()
        except WebSocketDisconnect:
            pass
        finally:
            self.is_closed = True

    async def send(self, message: Mapping[str, Any] | bytes) -> None:
        """Send one message. Blocks while the client does not read."""
        is_audio = isinstance(message, bytes)
        data = message if is_audio else json.dumps(message, separators=(",", ":"))
        await self._write({"type": "websocket.send", "bytes" if is_audio else "text": data})

    async def close(self, code: int = NORMAL, reason: str = "") -> None:
        short = reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
        await self._write({"type": "websocket.close", "code": code, "reason": short})
        self._stop_reading()

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

    # -- the session -------------------------------------------------------------------------

    async def receive(self) -> Event | None:
        event = await self._websocket.receive()
        self.is_closed = self.is_closed or event["type"] == "websocket.disconnect"
        return None if event["type"] == "websocket.disconnect" else event

    async def take(self, message: Event) -> None:
        if not self._may_send_more():
            await self.close(POLICY, f"more than {MESSAGE_RATE:.0f} messages per second")
            return
        try:
            text = message.get("text")
            if text is None:
                raise RefusedError("messages must be JSON text, not binary", code="not_text")
            await self.handle(parse_object(text))
        except WebSocketDisconnect:
            raise
        except Exception as error:
            await self._answer(describe(error))

    async def end_idle(self, failure: Failure) -> None:
        await self.refuse(failure)
        if not self.is_closed:
            await self.close(NORMAL, failure.message)

    async def end_drained(self) -> None:
        await self.close(RESTART, "the server is shutting down")

    async def _answer(self, failure: Failure) -> None:
        await self.refuse(failure)
        self._num_bad += 1
        if failure.status == 500 and not self.is_closed:
            await self.close(BROKEN, failure.message)
        elif self._num_bad >= MAX_BAD and not self.is_closed:
            await self.close(POLICY, f"{MAX_BAD} messages were invalid")

    def _may_send_more(self) -> bool:
        now = time.monotonic()
        gained = (now - self._refilled) * MESSAGE_RATE
        self._allowance, self._refilled = min(MAX_BURST, self._allowance + gained) - 1, now
        return self._allowance >= 0

    def _remove_task(self, task: asyncio.Task[None]) -> None:
        super()._remove_task(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, WebSocketDisconnect):
                log.error("a WebSocket session failed", exc_info=error)
            self._stop_reading()
