"""Listening sockets of the server."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vivace.errors import RequestError
from vivace.serve.settings import ServeSettings

if TYPE_CHECKING:
    from typing_extensions import Self

BACKLOG = 1_024
ACCEPT_LOG_INTERVAL_S = 10.0
WYOMING_FLAG = "--wyoming-port"

log = logging.getLogger(__name__)


def bind(
    host: str, port: int, flag: str = "--port", *, is_shared: bool = False, listens: bool = True
) -> socket.socket:
    """Return a bound socket, which listens. RequestError if the address or port cannot be used.

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
        raise _refusal(f"{host}:{port}", flag, error) from error
    return listener


def _refusal(where: str, flag: str, error: OSError) -> RequestError:
    return RequestError(
        f"cannot listen on {where}: {error.strerror}; choose another {flag} or --host"
    )


@dataclass(frozen=True, slots=True)
class Listeners:
    """The bound sockets of a server. Leaving the `with` block closes them."""

    http: socket.socket | None
    wyoming: socket.socket | None

    @classmethod
    def bind(
        cls, settings: ServeSettings, *, has_http: bool = True, is_shared: bool = False
    ) -> Self:
        """Reserve the ports. Connections are refused until `listen`.

        Raises RequestError if an address or port cannot be used.
        """
        host = settings.host
        http = wyoming = None
        if has_http:
            http = bind(host, settings.port, is_shared=is_shared, listens=False)
        try:
            if (port := settings.wyoming_port) is not None:
                wyoming = bind(host, port, WYOMING_FLAG, is_shared=is_shared, listens=False)
        except RequestError:
            if http is not None:
                http.close()
            raise
        return cls(http, wyoming)

    def listen(self) -> None:
        """Accept connections. Raises RequestError if another server was faster."""
        for listener, flag in ((self.http, "--port"), (self.wyoming, WYOMING_FLAG)):
            if listener is None:
                continue
            try:
                listener.listen(BACKLOG)
            except OSError as error:
                host, port = listener.getsockname()[:2]
                raise _refusal(f"{host}:{port}", flag, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for listener in (self.http, self.wyoming):
            if listener is not None:
                listener.close()


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
