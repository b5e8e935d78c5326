"""Runs HTTP by uvicorn, and Wyoming: listen, load, ready, drain, end."""

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
from vivace.serve.gauges import CountedThreads, watch_process
from vivace.serve.protocol import http_protocol, socket_protocol

if TYPE_CHECKING:
    from vivace.serve.wyoming.server import WyomingServer

BACKLOG = 1_024
CUT_S = 1.0  # for what is cut at the end of a drain
LAST_WORDS_S = 5.0  # for answers that are under way when the last stream is over


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: a drain comes first."""
        yield


class Server:
    """One server over a context, with HTTP or Wyoming alone; `stop` drains it."""

    def __init__(self, context: ServeContext, *, has_http: bool = True) -> None:
        self.context = context
        self.wyoming: WyomingServer | None = None  # where and while it is served
        self.wyoming_url: str | None = None
        self._has_http = has_http
        self._is_over = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self._loss: TTSError | None = None
        self.on_drain: Callable[[int, float, int], None] | None = None  # streams, limit, signal
        self.on_cut: Callable[[int], None] | None = None  # streams that the end cuts off
        context.models.recovery.on_lost = self._give_up
        watch_process(context.metrics)
        context.metrics.watch("connections", "Open connections.", self._connections, "kind")
        limit = float(context.settings.max_connections)
        context.metrics.watch("max_connections", "That may be open.", lambda: {"": limit})
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
        self.app = create_app(context)
        self._config = uvicorn.Config(
            self.app,
            http=http_protocol(settings, num_open),
            ws=socket_protocol(settings, num_open),
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
        except OSError as error:  # ssl's errors are of this kind
            raise RequestError(
                f"the certificate {settings.tls_cert} and its key {settings.tls_key} cannot be "
                f"used: {error}"
            ) from error
        self._uvicorn = _Uvicorn(self._config)

    async def serve(self, on_ready: Callable[[str], None] | None = None) -> None:
        """Answer until `stop`. Health answers while models load; then `on_ready` hears the URL.

        An error of the address, of a model, or of one that broke and cannot be loaded again, is
        raised: a supervisor starts the process again.
        """
        num_threads = min(32, (os.cpu_count() or 1) + 4)  # as asyncio's own
        threads = CountedThreads(num_threads, "work", self.context.metrics)
        asyncio.get_running_loop().set_default_executor(threads)
        async with contextlib.AsyncExitStack() as stack:
            if self.context.streams.traces is not None:
                stack.callback(self.context.streams.traces.close)
            stack.push_async_callback(self.context.models.close)
            http, wyoming = self._bind(stack)
            self._handle_signals()
            serving: asyncio.Task[Any] = asyncio.create_task(
                self._is_over.wait() if http is None else self._uvicorn.serve([http])
            )
            starting = asyncio.create_task(self.context.models.start())
            try:
                await asyncio.wait({serving, starting}, return_when=asyncio.FIRST_COMPLETED)
                if not serving.done():
                    await starting
                    url = await self._open_wyoming(stack, wyoming)
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

    def _bind(
        self, stack: contextlib.AsyncExitStack
    ) -> tuple[socket.socket | None, socket.socket | None]:
        settings, http, wyoming = self.context.settings, None, None
        if self._has_http:
            http = stack.enter_context(bind(settings.host, settings.port))
        if settings.wyoming_port is not None:
            port = settings.wyoming_port
            wyoming = stack.enter_context(bind(settings.host, port, "--wyoming-port"))
        return http, wyoming

    async def _open_wyoming(
        self, stack: contextlib.AsyncExitStack, listener: socket.socket | None
    ) -> str:
        if listener is None:
            return ""
        from vivace.serve.wyoming.server import WyomingServer  # its package is an extra

        self.wyoming = WyomingServer(self.context)
        await stack.enter_async_context(self.wyoming.serving(listener))
        self.wyoming_url = address("tcp", listener)
        return self.wyoming_url

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Finish what runs and end; the second call ends at once. For the loop's own thread."""
        if self._stopping is None:
            if self.on_drain is not None:
                limit_s = self.context.settings.drain_timeout_s
                self.on_drain(self.context.streams.num_active, limit_s, number)
            self._stopping = asyncio.get_running_loop().create_task(self._drain())
        else:
            self._cut()
            self._stopping.cancel()

    def _give_up(self, loss: TTSError) -> None:
        self._loss = loss
        self._end(CUT_S)

    async def _drain(self) -> None:
        is_over = await self.context.streams.drain(self.context.settings.drain_timeout_s)
        if is_over:
            self._end(LAST_WORDS_S)
        else:
            self._cut()

    def _cut(self) -> None:
        num_streams = self.context.streams.num_active
        if self.on_cut is not None and num_streams and not self._is_over.is_set():
            self.on_cut(num_streams)
        self._end(CUT_S)

    def _end(self, seconds: float) -> None:
        """uvicorn closes idle connections, waits for the others, then cancels them."""
        if self._has_http:
            self._config.timeout_graceful_shutdown = round(seconds)
        self._exit()

    def _exit(self) -> None:
        self._is_over.set()
        if self._has_http:
            self._uvicorn.should_exit = True

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is signal.SIG_IGN:
                continue  # a shell's background job
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, self.stop, number)  # only in the main thread


def bind(host: str, port: int, flag: str = "--port") -> socket.socket:
    """A socket of that address; a port that is taken is a RequestError."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(
            family, kind, protocol
        )  # without TCP's number asyncio keeps Nagle on
    except OSError as error:
        raise RequestError(f"{host} is no address of this machine: {error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise RequestError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another {flag} or --host"
        ) from error
    return listener


def address(scheme: str, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
