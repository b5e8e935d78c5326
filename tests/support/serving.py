"""Runs a real server with real sockets in a thread, or its models alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass

from vivace.serve.context import ServeContext
from vivace.serve.server import Server
from vivace.serve.settings import ModelSpec, ServeSettings
from vivace.tts import TTS

START_LIMIT_S = 120.0  # on a busy machine


@dataclass(frozen=True)
class Running:
    """A listening server. `url` is http://127.0.0.1:PORT."""

    url: str
    context: ServeContext
    server: Server
    loop: asyncio.AbstractEventLoop

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@asynccontextmanager
async def started_models(
    settings: ServeSettings, load: Callable[[ModelSpec], TTS]
) -> AsyncIterator[ServeContext]:
    """A server's context with loaded models, without its sockets."""
    context = ServeContext.create(settings, load)
    await context.models.start()
    try:
        yield context
    finally:
        await context.models.close()


@contextmanager
def running(
    settings: ServeSettings | None = None, load: Callable[[ModelSpec], TTS] | None = None
) -> Iterator[Running]:
    """Serve on a free port until the block ends. `load` replaces `TTS.load`."""
    settings = settings or ServeSettings(port=0)
    context = ServeContext.create(settings, load)
    server = Server(context)
    is_up = threading.Event()
    found: list[str] = []
    failed: list[BaseException] = []
    loop = asyncio.new_event_loop()

    def on_ready(url: str) -> None:
        found.append(url)
        is_up.set()

    def work() -> None:
        try:
            loop.run_until_complete(server.serve(on_ready))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        except BaseException as error:
            failed.append(error)
        finally:
            loop.close()
            is_up.set()

    thread = threading.Thread(target=work, name="server")
    thread.start()
    try:
        assert is_up.wait(START_LIMIT_S), "the server did not start"
        if failed:
            raise failed[0]
        yield Running(found[0], context, server, loop)
    finally:
        if thread.is_alive():
            with suppress(RuntimeError):  # the server has ended and closed its loop
                loop.call_soon_threadsafe(server.stop)
            thread.join(START_LIMIT_S)
    if failed:
        raise failed[0]
