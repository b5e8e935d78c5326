"""HTTP responses whose body is written while it is made.

Starlette's StreamingResponse notices only when it sends that a client has disconnected, and leaves
its iterator open then. `LiveResponse` cancels its work at once. Clients that do not read are
disconnected by `protocol.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

if sys.platform != "win32":
    import fcntl
    import termios

TRANSPORT = "vivace.transport"  # in a scope's state: the connection's asyncio.Transport
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing resets the connection


def num_unsent(transport: asyncio.WriteTransport) -> int:
    """Bytes that the peer has not acknowledged.

    Most are in the kernel, which buffers megabytes and accepts no more until a third of them is
    acknowledged. A client that plays audio in real time takes longer than
    `send_timeout_s` for that.
    """
    try:
        num_buffered = transport.get_write_buffer_size()
    except AttributeError:  # asyncio's TLS transport after a second close
        return 0
    connection = transport.get_extra_info("socket")
    if sys.platform == "win32" or connection is None or connection.fileno() < 0:
        return num_buffered
    try:
        queued = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:  # not supported by this socket
        return num_buffered
    return num_buffered + int.from_bytes(queued, sys.byteorder)


class ResponseSink:
    """Sends one response with status 200."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send = scope, send
        self.is_started = False

    async def start(self, headers: Mapping[str, str]) -> None:
        self.is_started = True
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": raw})

    async def write(self, content: bytes) -> None:
        if content:
            await self._send({"type": "http.response.body", "body": content, "more_body": True})

    async def end(self, content: bytes = b"") -> None:
        await self._send({"type": "http.response.body", "body": content, "more_body": False})

    def abort(self) -> None:
        """Make the client see an incomplete body; the caller returns without calling `end`.

        The server closes the connection without the last chunk of a chunked body. A body of
        HTTP/1.0 ends with its connection, so that connection is reset.
        """
        transport = self._scope.get("state", {}).get(TRANSPORT)
        if transport is not None and self._scope.get("http_version") == "1.0":
            connection = transport.get_extra_info("socket")
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


class LiveResponse(Response):
    """Runs `answer` while its client is connected. Used for one request only."""

    def __init__(self, answer: Callable[[ResponseSink], Coroutine[Any, Any, None]]) -> None:
        self._answer = answer
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await run_while_connected(receive, self._answer(ResponseSink(scope, send)))


async def run_while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run the work of a request whose body was read; cancel it when the client disconnects."""
    task = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        is_cancelled = not task.done()
        disconnect.cancel()
        task.cancel()
        await asyncio.gather(task, disconnect, return_exceptions=True)
    if not is_cancelled:
        task.result()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
