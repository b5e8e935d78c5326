"""Runs the HTTP server (uvicorn) and the Wyoming server from binding the port to the drain."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from vivace.errors import RequestError, TTSError
from vivace.serve.app import create_app
from vivace.serve.context import ServeContext
from vivace.serve.http.http_protocol import http_protocol
from vivace.serve.http.listener import Listeners, address, log_accept_errors
from vivace.serve.http.websocket_protocol import websocket_protocol
from vivace.serve.observability.threads import CountedThreads

if TYPE_CHECKING:
    from vivace.serve.wyoming.server import WyomingServer

CUT_TIMEOUT_S = 1.0  # for streams that are cut off at the end of a drain
RESPONSE_FLUSH_TIMEOUT_S = 5.0  # for responses that are being sent after the last stream


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `Server`, which drains first."""
        yield


class Server:
    """One server over a context, with HTTP, Wyoming or both; `stop` drains it."""

    def __init__(
        self, context: ServeContext, *, has_http: bool = True, listeners: Listeners | None = None
    ) -> None:
        """Without `listeners`, `serve` binds the ports of the settings."""
        self.context, self._listeners = context, listeners
        self.wyoming: WyomingServer | None = None  # set while Wyoming is served
        self.wyoming_url: str | None = None
        self._has_http = has_http
        self._is_over = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self._loss: TTSError | None = None
        self.on_drain: Callable[[int, float, int], None] | None = (
            None  # number of streams, timeout, signal
        )
        self.on_cut: Callable[[int], None] | None = None  # number of streams that are cut off
        context.models.recovery.on_lost = self._stop_after_loss
        opened = "Open connections."
        context.metrics.watch("connections", opened, self._connections, "kind", is_summed=True)
        limit = float(context.settings.max_connections)
        context.metrics.watch("max_connections", "Limit of open connections.", lambda: {"": limit})
        if has_http:
            self._build_http(context)

    def _connections(self) -> dict[str, float]:
        opened = list(self._uvicorn.server_state.connections) if self._has_http else []
        num_sockets = sum(isinstance(one, WebSocketsSansIOProtocol) for one in opened)
        counted = {"http": float(len(opened) - num_sockets), "websocket": float(num_sockets)}
        num_wyoming = 0 if self.wyoming is None else self.wyoming.num_connections
        return {**counted, "wyoming": float(num_wyoming)}

    def _build_http(self, context: ServeContext) -> None:
        settings, num_open = context.settings, Counter[str]()
        peers = None if context.peers is None else context.peers.http
        self.app = create_app(context)
        self._config = uvicorn.Config(
            self.app,
            http=http_protocol(settings, num_open, peers),
            ws=websocket_protocol(settings, num_open, peers),
            ws_max_size=settings.max_message_bytes,
            ws_per_message_deflate=False,  # a small frame could grow a thousandfold
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=max(1, round(settings.keep_alive_s)),
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=str(settings.tls_key) if settings.tls_key else None,
        )
        try:
            self._config.load()
        except OSError as error:  # includes ssl.SSLError
            raise RequestError(
                f"the certificate {settings.tls_cert} and its key {settings.tls_key} cannot be "
                f"used: {error}"
            ) from error
        self._uvicorn = _Uvicorn(self._config)

    async def serve(self, on_ready: Callable[[str], None] | None = None) -> None:
        """Serve until `stop`. `on_ready` gets the URL after all models are loaded.

        /health is served while models load. Raises an error of the address, of a model, or of a
        model that crashed and cannot be loaded again, so that a supervisor restarts the process.
        """
        num_threads = min(32, (os.cpu_count() or 1) + 4)  # asyncio's default
        threads = CountedThreads(num_threads, "work", self.context.metrics)
        loop = asyncio.get_running_loop()
        loop.set_default_executor(threads)
        log_accept_errors(loop)
        async with contextlib.AsyncExitStack() as stack:
            if self.context.streams.traces is not None:
                stack.callback(self.context.streams.traces.close)
            stack.push_async_callback(self.context.models.close)
            listeners = stack.enter_context(self._listeners or self._bind())
            listeners.listen()
            http = listeners.http
            self._handle_signals(stack)
            serving: asyncio.Task[Any] = asyncio.create_task(
                self._is_over.wait() if http is None else self._uvicorn.serve([http])
            )
            starting = asyncio.create_task(self.context.models.start())
            try:
                await asyncio.wait({serving, starting}, return_when=asyncio.FIRST_COMPLETED)
                if not serving.done():
                    await starting
                    url = await self._open_wyoming(stack, listeners.wyoming)
                    if http is not None:
                        url = address(self.context.settings.scheme, http)
                    if on_ready is not None:
                        on_ready(url)
                await serving
                if self._loss is not None:
                    raise self._loss
            finally:
                starting.cancel()
                self._exit()
                await asyncio.gather(serving, starting, return_exceptions=True)

    def _bind(self) -> Listeners:
        settings, is_shared = self.context.settings, self.context.peers is not None
        return Listeners.bind(settings, has_http=self._has_http, is_shared=is_shared)

    async def _open_wyoming(
        self, stack: contextlib.AsyncExitStack, listener: socket.socket | None
    ) -> str:
        if listener is None:
            return ""
        from vivace.serve.wyoming.server import WyomingServer  # needs the extra `wyoming`

        self.wyoming = WyomingServer(self.context)
        await stack.enter_async_context(self.wyoming.serving(listener))
        self.wyoming_url = address("tcp", listener)
        return self.wyoming_url

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Finish running streams and stop. The second call stops now. Event loop thread only."""
        if self._stopping is None:
            if self.on_drain is not None:
                limit_s = self.context.settings.drain_timeout_s
                self.on_drain(self.context.streams.num_active, limit_s, number)
            self._stopping = asyncio.get_running_loop().create_task(self._drain())
        else:
            self._cut()
            self._stopping.cancel()

    def _stop_after_loss(self, loss: TTSError) -> None:
        self._loss = loss
        self._end(CUT_TIMEOUT_S)

    async def _drain(self) -> None:
        is_over = await self.context.streams.drain(self.context.settings.drain_timeout_s)
        if is_over:
            self._end(RESPONSE_FLUSH_TIMEOUT_S)
        else:
            self._cut()

    def _cut(self) -> None:
        num_streams = self.context.streams.num_active
        if self.on_cut is not None and num_streams and not self._is_over.is_set():
            self.on_cut(num_streams)
        self._end(CUT_TIMEOUT_S)

    def _end(self, seconds: float) -> None:
        """Close idle connections now, and cancel the others after `seconds`."""
        if self._has_http:
            self._config.timeout_graceful_shutdown = round(seconds)
        self._exit()

    def _exit(self) -> None:
        self._is_over.set()
        if self._has_http:
            self._uvicorn.should_exit = True

    def _handle_signals(self, stack: contextlib.AsyncExitStack) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            previous = signal.getsignal(number)
            if previous is signal.SIG_IGN:
                continue  # background job of a shell
            with contextlib.suppress(RuntimeError, ValueError):  # main thread only
                try:
                    loop.add_signal_handler(number, self.stop, number)
                except NotImplementedError:  # Windows
                    signal.signal(number, lambda n, _: loop.call_soon_threadsafe(self.stop, n))
                    stack.callback(signal.signal, number, previous)
