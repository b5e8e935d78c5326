"""A stream read by an event loop, and text that an event loop writes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor

from vivace.audio.clip import AudioChunk
from vivace.engine.stream import Stream

Text = str | Iterable[str]


class AsyncPieces(Iterator[str]):
    """Waits, in its own thread, for pieces that an event loop produces."""

    def __init__(self, pieces: AsyncIterable[str], loop: asyncio.AbstractEventLoop) -> None:
        self._pieces = pieces.__aiter__()
        self._loop = loop
        self._lock = threading.Lock()  # a piece may be waited for before `_pending` is set
        self._pending: Future[str] | None = None
        self._is_stopped = False

    def __next__(self) -> str:
        with self._lock:
            if self._is_stopped:
                raise CancelledError
            self._pending = asyncio.run_coroutine_threadsafe(self._pull(), self._loop)
        try:
            return self._pending.result()
        except StopAsyncIteration:
            raise StopIteration from None

    def stop(self) -> None:
        """Wake the thread that waits, or would wait next; it hears a cancellation."""
        with self._lock:
            self._is_stopped = True
            if self._pending is not None:
                self._pending.cancel()

    async def _pull(self) -> str:
        return await self._pieces.__anext__()


async def read_async(
    open_stream: Callable[[Text], Stream], text: Text | AsyncIterable[str]
) -> AsyncIterator[AudioChunk]:
    """The chunks of a stream; leaving early closes it."""
    loop = asyncio.get_running_loop()
    pieces = None
    if isinstance(text, AsyncIterable):
        text = pieces = AsyncPieces(text, loop)
    stream = open_stream(text)
    # Two threads of its own, one to wait and one to stop it: those of a shared pool may all be
    # waiting for places that only a stream without a thread could free.
    threads = ThreadPoolExecutor(2, thread_name_prefix="vivace-stream")
    try:
        while chunk := await loop.run_in_executor(threads, next, stream, None):
            yield chunk
    finally:
        stopping = loop.run_in_executor(threads, stream.close)
        threads.shutdown(wait=False)
        try:
            await asyncio.shield(stopping)
        finally:
            if pieces is not None:  # what wakes up now finds the stream closed
                pieces.stop()
