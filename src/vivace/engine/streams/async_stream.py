"""Streams for asyncio. A thread is used only if the text is an ordinary iterator."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from vivace.audio.clip import Audio, AudioChunk
from vivace.engine.streams.batch import Result, Steps, take_step
from vivace.engine.streams.stream import Stream, Wake
from vivace.engine.turn_report import TurnHook
from vivace.engine.utterances.steps import Wait
from vivace.errors import StreamClosedError
from vivace.script.request import Pieces
from vivace.speech import Usage, stream_repr

if TYPE_CHECKING:
    from vivace.speech import FinishReason  # jedi fails on a property whose Literal resolves

T = TypeVar("T")

MAX_PIECE = 1_000  # characters of a live text that are read before other tasks run
SETTLE_S = 0.25  # without new text after which the writer counts as paused


class LoopWaker:
    """Sets events of an event loop from other threads, several in one call.

    One `call_soon_threadsafe` for every stream of a turn would let the loop take the GIL from the
    engine's thread as often.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._due: deque[asyncio.Event] = deque()
        self._is_scheduled = False

    def wake(self, event: asyncio.Event) -> None:
        """Set the event soon, in the loop's thread. May be called from any thread."""
        self._due.append(event)
        loop = self._loop()
        if self._is_scheduled or loop is None:
            return
        self._is_scheduled = True
        try:
            loop.call_soon_threadsafe(self._set_events)
        except RuntimeError:
            pass  # the loop is closed, so no task waits
        except BaseException:  # an interrupt
            self._is_scheduled = False
            raise

    def _set_events(self) -> None:
        self._is_scheduled = False  # first: an event that is added later is scheduled again
        while self._due:
            self._due.popleft().set()


class LoopWakers:
    """One `LoopWaker` for each event loop."""

    def __init__(self) -> None:
        self._wakers = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWaker]()

    def get(self, loop: asyncio.AbstractEventLoop) -> LoopWaker:
        waker = self._wakers.get(loop)
        if waker is None:
            waker = self._wakers[loop] = LoopWaker(loop)
        return waker


async def run_steps_async(
    open_steps: Callable[[Wake], Steps[T]], wakers: LoopWakers, *, is_slow: bool = False
) -> T:
    """Read steps to their end in the event loop. `is_slow` runs each step in a thread."""
    event = asyncio.Event()
    steps = open_steps(partial(wakers.get(asyncio.get_running_loop()).wake, event))
    with closing(steps):
        while True:
            event.clear()
            if is_slow:
                step = await _finish(asyncio.ensure_future(asyncio.to_thread(take_step, steps)))
            else:
                step = take_step(steps)
            if isinstance(step, Result):
                return step.value
            await (asyncio.sleep(0) if step else event.wait())


async def _finish(task: asyncio.Future[T]) -> T:
    """Wait for work in a thread, also after the waiting task was cancelled."""
    try:
        return await asyncio.shield(task)
    finally:
        await asyncio.wait([task])


class AsyncStream(AsyncIterator[AudioChunk]):
    """Audio chunks of a text for `async for`. Closing it or cancelling its task frees its slot."""

    def __init__(
        self,
        open_stream: Callable[[Wake], Stream],
        pieces: Pieces | None,
        wakers: LoopWakers,
        *,
        is_slow: bool = False,
    ) -> None:
        self._open_stream, self._is_slow, self._wakers = open_stream, is_slow, wakers
        self._pieces = pieces  # of a live text
        self._rest = ""  # of a long piece
        self._coming: asyncio.Task[str | None] | None = None  # reads the next piece
        self.on_turn: TurnHook | None = None  # set before the first chunk is read
        self._stream: Stream | None = None
        self._ahead: AudioChunk | Wait | None = None  # the first step, taken by `await`
        self._is_closed = False
        self._event = asyncio.Event()  # set by the engine and by `aclose`
        self._threads: ThreadPoolExecutor | None = None

    def __repr__(self) -> str:
        return stream_repr(self, self.usage, self.finish_reason)

    def __await__(self) -> Generator[Any, None, AsyncStream]:
        """Check the request and queue it. Raises the errors of a request."""
        return self._begin().__await__()

    async def _begin(self) -> AsyncStream:
        try:
            stream = await self._open()
            if self._ahead is None:
                with suppress(StopIteration):
                    self._ahead = stream.step()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __anext__(self) -> AudioChunk:
        try:
            stream = await self._open()
            ahead, self._ahead = self._ahead, None
            if isinstance(ahead, AudioChunk):
                return ahead
            return await self._drive(stream, stream.step)
        except BaseException:
            await self.aclose()
            raise

    async def collect(self, report: Callable[[Stream], None] | None = None) -> Audio:
        """The whole audio, as `speak` returns it. Only before the first chunk is read.

        Args:
            report: Called with the underlying `Stream` after every chunk.
        """
        try:
            stream = await self._open()
            with closing(stream.collect_steps()) as steps:
                while not isinstance(step := await self._drive(stream, steps.__next__), Audio):
                    if report is not None:
                        report(stream)
                    await asyncio.sleep(0)
            return step
        except BaseException:
            await self.aclose()
            raise

    async def _drive(self, stream: Stream, take: Callable[[], T | Wait]) -> T:
        """The next step that is not a wait."""
        while True:
            self._event.clear()
            try:
                step = take()
            except StopIteration:  # which cannot leave a coroutine
                raise StopAsyncIteration from None
            if not isinstance(step, Wait):
                return step
            if step is Wait.TEXT:
                await self._pull(stream)
            else:
                await self._event.wait()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop at once, from any task of the loop. A task that waits for a chunk gets no more."""
        self._is_closed = True
        if self._stream is not None:
            self._stream.close()
        self._event.set()
        if (coming := self._coming) is not None:
            self._coming = None
            await _drop(coming)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def usage(self) -> Usage | None:
        """Totals so far; None before the first chunk is read."""
        return None if self._stream is None else self._stream.usage

    @property
    def has_begun(self) -> bool:
        """Whether the first utterance was submitted to the engine."""
        return self._stream is not None and self._stream.has_begun

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the speech ended; None before its end."""
        if self._stream is None:
            return "cancelled" if self._is_closed else None
        return self._stream.finish_reason

    async def _open(self) -> Stream:
        if self._stream is None:
            if self._is_closed:
                raise StreamClosedError("this stream was closed; open a new one")
            wake = partial(self._wakers.get(asyncio.get_running_loop()).wake, self._event)
            if self._is_slow:  # opening the stream would block the loop
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
        """Feed the next piece of a live text, unless the stream is closed meanwhile."""
        try:
            if self._rest:
                await asyncio.sleep(0)
            piece = self._rest or await self._wait_for_piece(stream)
        except StopAsyncIteration:
            stream.script.finish()
        except Exception as error:
            stream.script.finish(error)
        else:
            if isinstance(piece, str):
                piece, self._rest = piece[:MAX_PIECE], piece[MAX_PIECE:]
            if piece is not None and not self._is_closed:
                stream.script.feed(piece)

    def _next_piece(self) -> Coroutine[Any, Any, str | None]:
        assert self._pieces is not None
        if self._threads is None and not isinstance(self._pieces, AsyncIterator):
            # Not a shared pool: there, an iterator could wait for one that has no thread.
            self._threads = ThreadPoolExecutor(1, "vivace-text")
        return _read_piece(self._pieces, self._threads)

    async def _wait_for_piece(self, stream: Stream) -> str | None:
        """None if the stream is closed, or if the writer pauses and some text can be spoken."""
        coming, self._coming = self._coming or asyncio.ensure_future(self._next_piece()), None
        closing = asyncio.ensure_future(self._wait_for_close())
        try:
            for timeout_s in (SETTLE_S, None):
                await asyncio.wait(
                    (coming, closing), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
                )
                if coming.done():
                    return coming.result()
                if not closing.done() and stream.script.settle():
                    self._coming = coming
                if closing.done() or self._coming:
                    break
            return None
        finally:
            closing.cancel()
            if self._coming is None:
                await _drop(coming)

    async def _wait_for_close(self) -> None:
        while not self._is_closed:
            self._event.clear()
            await self._event.wait()


async def _read_piece(pieces: Pieces, threads: ThreadPoolExecutor | None) -> str | None:
    """Holds no reference to the stream, which may be dropped meanwhile."""
    if isinstance(pieces, AsyncIterator):
        return await pieces.__anext__()
    loop, end = asyncio.get_running_loop(), object()  # a StopIteration cannot leave a future
    piece: Any = await loop.run_in_executor(threads, next, pieces, end)
    if piece is end:
        raise StopAsyncIteration
    return cast("str | None", piece)


async def _drop(task: asyncio.Task[str | None]) -> None:
    """Cancel a task. If it has ended, mark its exception as retrieved; asyncio would log it."""
    if not task.cancel():
        _ = task.cancelled() or task.exception()
    elif task is not asyncio.current_task():  # a text may close its own stream
        await asyncio.gather(task, return_exceptions=True)
