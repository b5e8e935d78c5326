"""A response whose body is made while it is sent.

The client may leave at any time, or have to be told that what it got is not all. Starlette's
StreamingResponse notices a client's leaving only when it sends, and leaves its iterator open then.
Clients that do not read are cut off by `protocol.py`, which looks like their leaving here.
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
    """Bytes that the peer has not taken.

    Most are the kernel's, which has megabytes and takes no more until a third of them has gone:
    whoever plays what it reads needs longer for that than `send_timeout_s`.
    """
    try:
        num_here = transport.get_write_buffer_size()
    except AttributeError:  # of asyncio's TLS, when it was closed twice
        return 0
    connection = transport.get_extra_info("socket")
    if sys.platform == "win32" or connection is None or connection.fileno() < 0:
        return num_here
    try:
        queued = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:  # it does not tell
        return num_here
    return num_here + int.from_bytes(queued, sys.byteorder)


class Outlet:
    """Sends one response."""

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
        """See to it that the client takes what it got for incomplete; the caller returns then.

        The connection is closed without the last chunk of a chunked body. A body of HTTP/1.0 ends
        with its connection, so that is reset.
        """
        transport = self._scope.get("state", {}).get(TRANSPORT)
        if transport is not None and self._scope.get("http_version") == "1.0":
            connection = transport.get_extra_info("socket")
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


class WhileConnected(Response):
    """An answer that is made and sent while its client is there; made anew for every request."""

    def __init__(self, answer: Callable[[Outlet], Coroutine[Any, Any, None]]) -> None:
        self._answer = answer
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await run_while_connected(receive, self._answer(Outlet(scope, send)))


async def run_while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do the work of a request whose body was read; cancel it as soon as the client has left."""
    task = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_wait_until_left(receive))
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        has_left = not task.done()
        leaving.cancel()
        task.cancel()
        await asyncio.gather(task, leaving, return_exceptions=True)
    if not has_left:
        task.result()


async def _wait_until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
