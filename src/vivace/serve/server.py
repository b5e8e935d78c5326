"""Runs the application with uvicorn: start, ready, drain, end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable

import uvicorn

from vivace.serve.app import create_app
from vivace.serve.context import ServeContext


class Server:
    """One server over a context. `stop` drains; it may be called from a signal handler."""

    def __init__(self, context: ServeContext) -> None:
        settings = context.settings
        self.context = context
        self._config = uvicorn.Config(
            create_app(context),
            host=settings.host,
            port=settings.port,
            http="h11",
            ws="websockets-sansio",
            ws_max_size=settings.max_message_bytes,
            ws_per_message_deflate=False,  # a small frame could grow a thousandfold
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=int(settings.keep_alive_s),
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
            proxy_headers=False,
        )
        self._uvicorn = uvicorn.Server(self._config)
        self._stopping: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(
        self,
        on_ready: Callable[[str], None] | None = None,
        sockets: list[socket.socket] | None = None,
    ) -> None:
        """Load the models, then listen until `stop`; `on_ready` hears the address."""
        self._loop = asyncio.get_running_loop()
        listeners = sockets or [bind(self.context.settings.host, self.context.settings.port)]
        try:
            await self.context.models.start()
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                for number in (signal.SIGTERM, signal.SIGINT):
                    self._loop.add_signal_handler(number, self.stop)
            if on_ready is not None:
                on_ready(address(self.context.settings.scheme, listeners[0]))
            await self._uvicorn._serve(listeners)
        finally:
            for listener in listeners:
                listener.close()
            await self.context.models.close()

    def stop(self) -> None:
        """Drain and end; the second call ends at once."""
        assert self._loop is not None
        if self._stopping is not None:
            self._uvicorn.force_exit = self._uvicorn.should_exit = True
            return
        self._stopping = self._loop.create_task(self._drain())

    async def _drain(self) -> None:
        await self.context.streams.drain(self.context.settings.drain_timeout_s)
        self._uvicorn.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host.strip("[]"), port))
    return listener


def address(scheme: str, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
