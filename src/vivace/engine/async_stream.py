"""A stream that an event loop reads: no thread, unless its text is an ordinary iterator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from vivace.audio.clip import AudioChunk
from vivace.engine.stream import Stream, Wait, Wake
from vivace.engine.utterance import Turn
from vivace.errors import StreamClosedError
from vivace.script.request import Pieces
from vivace.speech import FinishReason, Usage

T = TypeVar("T")
MAX_PIECE = 1_000  # characters of a live text that are read at a time, between other tasks


class AsyncStream(AsyncIterator[AudioChunk]):
    """Audio chunks of a text for `async for`; leaving, closing or cancelling frees its slot."""

    def __init__(
        self, open_stream: Callable[[Wake], Stream], pieces: Pieces | None, *, is_slow: bool = False
    ) -> None:
        self._open_stream, self._is_slow = open_stream, is_slow
        self._pieces = pieces  # of a live text
        self._rest = ""  # of a long piece
        self.on_turn: Callable[[Turn], None] | None = None  # set it before the first chunk
        self._stream: Stream | None = None
        self._is_closed = False
        self._event = asyncio.Event()  # the engine or a close has news
        self._threads: ThreadPoolExecutor | None = None

    async def __anext__(self) -> AudioChunk:
        try:
            stream = await self._open()
            while True:
                self._event.clear()
                try:
                    step = stream.step()
                except StopIteration:
                    raise StopAsyncIteration from None
                if isinstance(step, AudioChunk):
                    return step
                if step is Wait.TEXT:
                    await self._pull(stream)
                else:
                    await self._event.wait()
        except BaseException:
            await self.aclose()
            raise

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop at once, from any task of the loop; a task that waits for a chunk gets no more."""
        self._is_closed = True
        if self._stream is not None:
            self._stream.close()
        self._event.set()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def usage(self) -> Usage | None:
        """What was made so far and what it cost; None before the first chunk was asked for."""
        return None if self._stream is None else self._stream.usage

    @property
    def finish_reason(self) -> FinishReason | None:
        if self._stream is None:
            return "cancelled" if self._is_closed else None
        return self._stream.finish_reason

    async def _open(self) -> Stream:
        if self._stream is None:
            if self._is_closed:
                raise StreamClosedError("this stream was closed; ask for a new one")
            wake = _waker(asyncio.get_running_loop(), self._event)
            if self._is_slow:  # opening it would block the loop
                self._stream = await asyncio.to_thread(self._open_stream, wake)
                if self._is_closed:
                    self._stream.close()
            else:
                self._stream = self._open_stream(wake)
            self._stream.on_turn = self.on_turn
        elif self._stream.finish_reason in (None, "cancelled"):
            self._stream.check_open()
        return self._stream

    async def _pull(self, stream: Stream) -> None:
        """The next piece of a live text, unless the stream is closed first."""
        try:
            if self._rest:
                await asyncio.sleep(0)
            piece = self._rest or await self._unless_closed(self._next_piece())
        except (StopAsyncIteration, _EndOfText):
            stream.finish_text()
        except Exception as error:
            stream.finish_text(error)
        else:
            if isinstance(piece, str):
                piece, self._rest = piece[:MAX_PIECE], piece[MAX_PIECE:]
            if not self._is_closed:
                stream.feed(piece)

    async def _next_piece(self) -> str:
        if isinstance(self._pieces, AsyncIterator):
            return await self._pieces.__anext__()
        assert self._pieces is not None
        # Its own thread: in a shared pool, iterators could wait for one that has no thread.
        self._threads = self._threads or ThreadPoolExecutor(1, "vivace-text")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _next_of, self._pieces)

    async def _unless_closed(self, pending: Coroutine[Any, Any, T]) -> T | None:
        task = asyncio.ensure_future(pending)
        closing = asyncio.ensure_future(self._wait_for_close())
        try:
            await asyncio.wait({task, closing}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            closing.cancel()
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _wait_for_close(self) -> None:
        while not self._is_closed:
            self._event.clear()
            await self._event.wait()


class _EndOfText(Exception):
    """A StopIteration cannot leave a future."""


def _next_of(pieces: Iterator[str]) -> str:
    try:
        return next(pieces)
    except StopIteration:
        raise _EndOfText from None


def _waker(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> Wake:
    def wake() -> None:
        with suppress(RuntimeError):  # the loop is closed, so nobody waits
            loop.call_soon_threadsafe(event.set)

    return wake
