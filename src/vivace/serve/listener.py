"""Listening sockets of the server."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from typing import Any

from vivace.errors import RequestError

BACKLOG = 1_024
ACCEPT_LOG_INTERVAL_S = 10.0

log = logging.getLogger(__name__)


def bind(
    host: str, port: int, flag: str = "--port", *, is_shared: bool = False, listens: bool = True
) -> socket.socket:
    """Return a listening socket. Raises RequestError if the address or port cannot be used.

    `is_shared`: other sockets of this user may have the same port, and the kernel distributes
    connections among those that listen.
    """
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # asyncio disables Nagle's algorithm only on sockets with TCP's protocol number.
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise RequestError(f"--host {host} is not an address of this machine: {error}") from error
    try:
        if sys.platform != "win32":  # on Windows, two processes could bind the same port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(where)
        if listens:
            listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise RequestError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another {flag} or --host"
        ) from error
    return listener


def log_accept_errors(loop: asyncio.AbstractEventLoop) -> None:
    """Log that connections cannot be accepted, as without file descriptors, at most every 10 s.

    asyncio tries once for each place in the backlog and logs a traceback every time.
    """
    next_s = 0.0

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal next_s
        error = context.get("exception")
        if not (isinstance(error, OSError) and "socket.accept()" in context["message"]):
            loop.default_exception_handler(context)
        elif loop.time() >= next_s:
            next_s = loop.time() + ACCEPT_LOG_INTERVAL_S
            log.error("Connections cannot be accepted: %s.", error.strerror)

    loop.set_exception_handler(handle)


def address(scheme: str, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
