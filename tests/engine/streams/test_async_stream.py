"""`AsyncStream` in an event loop: threads, cancellation, unread streams and rebuilt backends."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import pytest

from tests.support import fork_server
from tests.support.scripted_backend import SpeakingBackend, wait_until, wait_until_empty
from vivace import TTS
from vivace.audio.clip import AudioChunk
from vivace.backends.base import Frames, Slot
from vivace.engine.limits import PACES
from vivace.engine.streams.async_stream import AsyncStream, LoopWakers
from vivace.engine.streams.stream import Stream
from vivace.engine.turn_report import TurnReport
from vivace.engine.utterances.steps import Wait
from vivace.errors import EngineError, QueueFullError, RequestError, StreamClosedError

SOON_S = 60  # ample on a busy machine


def codes_of(chunks: list[AudioChunk]) -> np.ndarray:
    return np.concatenate([chunk.codes[:, :2] for chunk in chunks])


def expected(seed: int, num_frames: int) -> np.ndarray:
    return np.stack((np.full(num_frames, seed), np.arange(num_frames)), axis=1)


async def read(tts: TTS, seed: int, text: object = "Hello.") -> list[AudioChunk]:
    stream = tts.astream(text, seed=seed, guard=False, live="word")  # type: ignore[arg-type]
    return [chunk async for chunk in stream]


async def words(num_words: int = 8) -> AsyncIterator[str]:
    for number in range(num_words):
        await asyncio.sleep(0)
        yield f"word {number} "


def test_256_astreams_run_on_a_bounded_number_of_threads() -> None:
    backend = SpeakingBackend(max_streams=64)
    num_threads = threading.active_count()
    most = 0

    async def count() -> None:
        nonlocal most
        while True:
            most = max(most, threading.active_count())
            await asyncio.sleep(0)

    async def run(tts: TTS) -> list[list[AudioChunk]]:
        counting = asyncio.create_task(count())
        texts = [words() if seed % 2 else "Hello." for seed in range(256)]
        try:
            return await asyncio.gather(*(read(tts, n, text) for n, text in enumerate(texts)))
        finally:
            counting.cancel()

    with backend.load(max_streams=64, max_queue=256) as tts:
        for seed, chunks in enumerate(asyncio.run(run(tts))):
            assert np.array_equal(codes_of(chunks), expected(seed, 12))
        wait_until_empty(tts.engine, backend)
    assert most <= num_threads + 2
    assert max(count for count, _ in backend.steps) > 8  # the loop may be slow


def test_unread_stream_does_not_pause_other_streams() -> None:
    backend = SpeakingBackend(num_frames=400)
    limit = PACES["balanced"].max_ahead + PACES["balanced"].max_frames

    async def run(tts: TTS) -> None:
        idle = [tts.astream("Hello.", guard=False, seed=seed) for seed in (1, 2)]
        for stream in idle:
            await anext(stream)
        chunks = await read(tts, 3)
        assert np.array_equal(codes_of(chunks), expected(3, 400))
        made = {one.seed: one.made for one in backend.open_slots.values()}
        assert made.keys() == {1, 2}
        assert max(made.values()) <= 1 + limit
        rest = [chunk async for chunk in idle[0]]
        assert np.array_equal(codes_of(rest)[-1], [1, 399])
        await idle[1].aclose()

    with backend.load() as tts:
        asyncio.run(run(tts))
        wait_until_empty(tts.engine, backend)


def test_unread_streams_delay_another_by_less_than_a_turn() -> None:
    def time_of(num_idle: int) -> float:
        backend = SpeakingBackend(num_frames=200, step_s=0.01)
        with backend.load() as tts:
            idle = [tts.stream("Hello.", guard=False, seed=seed) for seed in range(num_idle)]
            for stream in idle:
                next(stream)
            num_turns = len(backend.steps)
            chunks = list(tts.stream("Hello.", guard=False, seed=9, chunk_frames=4))
            assert len(chunks) == 50
            return len(backend.steps) - num_turns

    assert time_of(2) <= time_of(0) + 1


@pytest.mark.parametrize("text", ["Hello.", "live"])
def test_cancelled_task_ends_at_once(text: str) -> None:
    backend = SpeakingBackend(num_frames=10_000, max_streams=1)

    async def endless() -> AsyncIterator[str]:
        yield "Some words that are written at once, and then nothing for a long time; "
        await asyncio.sleep(SOON_S)
        raise AssertionError("it was waited for")

    async def run(tts: TTS) -> None:
        tasks = [
            asyncio.create_task(read(tts, seed, endless() if text == "live" else text))
            for seed in range(3)
        ]
        while not tts.engine.num_running:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        _, pending = await asyncio.wait(tasks, timeout=SOON_S / 2)
        assert not pending
        assert all(task.cancelled() for task in tasks)
        assert tts.engine.num_running == tts.engine.num_waiting == 0

    with backend.load(max_streams=1) as tts:
        asyncio.run(run(tts))
        wait_until_empty(tts.engine, backend)


def test_aclose_by_another_task_ends_the_wait_for_text() -> None:
    backend = SpeakingBackend()

    async def run(tts: TTS) -> None:
        asked = asyncio.Event()

        async def slow() -> AsyncIterator[str]:
            asked.set()
            await asyncio.sleep(SOON_S)
            yield "never"

        stream = tts.astream(slow())
        reader = asyncio.create_task(anext(stream, None))
        await asked.wait()
        await stream.aclose()
        assert await asyncio.wait_for(reader, SOON_S / 2) is None
        assert stream.finish_reason == "cancelled"
        with pytest.raises(StreamClosedError):
            await anext(stream)

    with backend.load() as tts:
        asyncio.run(run(tts))


@pytest.mark.parametrize("num_loops", range(6))
def test_text_that_ends_while_its_task_is_cancelled_is_not_logged(num_loops: int) -> None:
    """`num_loops` turns of the event loop pass between the end of the text and the cancellation."""
    backend = SpeakingBackend(num_frames=10_000, max_streams=1)
    reports: list[object] = []

    async def run(tts: TTS) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, facts: reports.append(facts))
        is_asked, is_over = asyncio.Event(), asyncio.Event()

        async def text() -> AsyncIterator[str]:
            yield "Some "
            is_asked.set()
            await is_over.wait()

        task = asyncio.create_task(read(tts, 1, text()))
        await is_asked.wait()
        is_over.set()
        for _ in range(num_loops):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        del task
        gc.collect()

    with backend.load(max_streams=1) as tts:
        asyncio.run(run(tts))
        wait_until_empty(tts.engine, backend)
    assert not reports


def test_stream_closed_while_opening_makes_no_audio() -> None:
    backend, go_on = SpeakingBackend(), threading.Event()

    async def run(tts: TTS) -> None:
        stream = tts.astream("Hello. " * 500, seed=1)
        open_stream = stream._open_stream

        def open_slowly(wake: Any) -> Any:
            go_on.wait(SOON_S)
            return open_stream(wake)

        stream._open_stream = open_slowly
        reader = asyncio.create_task(anext(stream, None))
        await asyncio.sleep(0.01)
        await stream.aclose()
        go_on.set()
        assert await reader is None
        assert stream.finish_reason == "cancelled"

    with backend.load() as tts:
        asyncio.run(run(tts))
    assert backend.admitted == []


def test_blocking_text_iterator_does_not_block_the_loop() -> None:
    backend, go_on = SpeakingBackend(), threading.Event()

    def slow() -> Iterator[str]:
        yield "Hello "
        go_on.wait(SOON_S)
        yield "there."

    async def run(tts: TTS) -> None:
        reader = asyncio.create_task(read(tts, 1, slow()))
        await asyncio.sleep(0.05)
        assert np.array_equal(codes_of(await read(tts, 2)), expected(2, 12))
        go_on.set()
        assert np.array_equal(codes_of(await reader), expected(1, 12))

    with backend.load() as tts:
        asyncio.run(run(tts))


def test_astream_raises_at_first_chunk_and_frees_its_slot_when_dropped() -> None:
    backend = SpeakingBackend(num_frames=1_000, max_streams=1)

    async def run(tts: TTS) -> None:
        with pytest.raises(RequestError, match="nothing to speak"):
            await anext(tts.astream("..."))
        stream = tts.astream("Hello.", guard=False, seed=1)
        await anext(stream)
        assert stream.usage is not None
        assert stream.usage.frames >= 1
        with pytest.raises(QueueFullError) as caught:
            await anext(tts.astream("Hello.", guard=False, seed=2))
        assert caught.value.retry_s > 0
        del stream
        gc.collect()
        async with tts.astream("Hello.", guard=False, seed=3) as other:
            assert (await anext(other)).codes[0, 0] == 3

    with backend.load(max_streams=1, max_queue=0) as tts:
        asyncio.run(run(tts))
        wait_until_empty(tts.engine, backend)


@dataclasses.dataclass
class ExtendingBackend(SpeakingBackend):
    """Calls `during_turn` once, in a turn, and counts the turns until `extend`."""

    during_turn: Callable[[], None] | None = None
    turns_until_extended: int | None = None
    _num_turns: int = 0

    def step(self, slots: Sequence[Slot], num_frames: int) -> Frames:
        self._num_turns += 1
        if self.during_turn is not None:
            action, self.during_turn, self._num_turns = self.during_turn, None, 0
            action()
        return super().step(slots, num_frames)

    def extend(self, slot: Slot, text_ids: Sequence[int], is_last: bool) -> None:
        self.turns_until_extended = self._num_turns


def test_live_text_is_appended_while_other_readers_are_busy() -> None:
    backend = ExtendingBackend(num_frames=100_000, step_s=0.001)
    with backend.load() as tts:
        done = threading.Event()

        def keep_busy(seed: int) -> None:
            for _ in tts.stream("Hello.", guard=False, seed=seed, chunk_frames=1):
                if done.is_set():
                    return

        busy = [threading.Thread(target=keep_busy, args=(seed,)) for seed in range(12)]
        for thread in busy:
            thread.start()
        wait_until(lambda: tts.engine.num_running == 12)
        utterance = tts.engine.call(lambda: tts.engine._worker.scheduler.running[0])
        backend.during_turn = lambda: tts.engine.extend(utterance, [1], False)
        wait_until(lambda: backend.turns_until_extended is not None)
        done.set()
        for thread in busy:
            thread.join(SOON_S)
            assert not thread.is_alive()
        assert backend.turns_until_extended is not None
        assert backend.turns_until_extended <= 3


def test_engine_reports_its_load_and_every_turn() -> None:
    backend, turns = SpeakingBackend(max_streams=2), list[TurnReport]()
    with backend.load(max_streams=2, max_queue=3) as tts:
        load = tts.engine.capacity()
        assert (load.num_slots, load.max_queue, load.num_running) == (2, 3, 0)
        assert not load.is_full
        tts.engine.on_turn = turns.append
        tts.speak("Hello.", seed=1)
        assert sum(turn.num_admitted for turn in turns) == 1
        assert max(turn.num_stepped for turn in turns) == 1
        assert all(turn.seconds >= 0 for turn in turns)

        def broken(turn: TurnReport) -> None:
            raise RuntimeError("a hook that fails")

        tts.engine.on_turn = broken
        assert len(tts.speak("Hello.", seed=2).codes) == 12


def test_backend_is_rebuilt_after_faults_in_a_row() -> None:
    broken, fresh = SpeakingBackend(broken=RuntimeError("a kernel failed")), SpeakingBackend()
    with broken.load() as tts:
        tts.engine._worker.rebuild = lambda: fresh
        for seed in range(3):
            with pytest.raises(EngineError, match="a kernel failed"):
                tts.speak("Hello.", seed=seed)
        assert np.array_equal(tts.speak("Hello.", seed=7).codes[:, :2], expected(7, 12))
        assert tts.engine.backend is fresh
        wait_until_empty(tts.engine, fresh)


def test_rebuilt_backend_is_not_kept_in_the_frozen_heap(real_freeze: None) -> None:
    broken = SpeakingBackend(broken=RuntimeError("a kernel failed"))
    with broken.load() as tts:
        tts.engine._worker.rebuild = SpeakingBackend
        gc.freeze()  # as `vivace serve` does; frozen objects are not collected
        try:
            for seed in range(3):
                with pytest.raises(EngineError, match="a kernel failed"):
                    tts.speak("Hello.", seed=seed)
            assert len(tts.speak("Hello.", seed=7).codes) == 12
            assert gc.get_freeze_count() == 0
        finally:
            gc.unfreeze()


def test_single_faults_do_not_rebuild_the_backend() -> None:
    backend = SpeakingBackend()
    with backend.load() as tts:
        tts.engine._worker.rebuild = lambda: pytest.fail("it was rebuilt")
        for seed in range(4):
            backend.broken = RuntimeError("a kernel failed")
            with pytest.raises(EngineError, match="a kernel failed"):
                tts.speak("Hello.", seed=seed)
            backend.broken = None
            assert len(tts.speak("Hello.", seed=seed).codes) == 12


EXIT_WHILE_SPEAKING = """
import sys, threading, time
from vivace import TTS

tts = TTS.load(sys.argv[1], device="cpu")
stream = tts.stream("Hello.", seed=1, min_frames=500, max_frames=500, chunk_frames=500)
threading.Thread(target=lambda: next(stream), daemon=True).start()
while not tts.engine.num_running:
    time.sleep(0.001)
print("exits")
"""


@pytest.mark.ci
def test_process_exits_cleanly_during_a_turn(tiny_folder: Path) -> None:
    done = fork_server.run(EXIT_WHILE_SPEAKING, str(tiny_folder / "custom_voice"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "exits\n", "")


FREED_BY_THE_THREAD = """
import sys, time
from vivace import TTS

class Weights:
    def __del__(self):
        time.sleep(1.0)
        print("freed")

def speak_and_forget():
    tts = TTS.load(sys.argv[1], device="cpu")
    tts.speak("Hello.", seed=1, max_frames=2)
    tts.engine.backend.weights = Weights()

speak_and_forget()
print("exits")
"""


@pytest.mark.ci
def test_exit_waits_for_the_thread_that_frees_the_weights(tiny_folder: Path) -> None:
    done = fork_server.run(FREED_BY_THE_THREAD, str(tiny_folder / "custom_voice"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "exits\nfreed\n", "")


def test_unread_stream_loses_its_slot_after_max_idle() -> None:
    backend = SpeakingBackend(max_streams=1, num_frames=1_000)
    with backend.load(max_streams=1) as tts:
        limits = dataclasses.replace(tts.engine.limits, max_idle_s=0.05)
        tts.engine._worker.limits = limits
        idle = tts.stream("Hello.", guard=False, seed=1)
        next(idle)
        other = tts.stream("Hello.", guard=False, seed=2)
        assert next(other).codes[0, 0] == 2
        with pytest.raises(EngineError, match="was not read, or got no text"):
            list(idle)


def test_unread_stream_loses_its_slot_while_others_run() -> None:
    backend = SpeakingBackend(max_streams=2, num_frames=100_000)
    with backend.load(max_streams=2) as tts:
        tts.engine._worker.limits = dataclasses.replace(tts.engine.limits, max_idle_s=0.05)
        idle, busy = (tts.stream("Hello.", guard=False, seed=seed) for seed in (1, 2))
        next(idle), next(busy)
        done = threading.Event()

        def keep_busy() -> None:
            while not done.is_set():
                next(busy)

        reader = threading.Thread(target=keep_busy)
        reader.start()
        try:
            assert next(tts.stream("Hello.", guard=False, seed=3)).codes[0, 0] == 3
        finally:
            done.set()
            reader.join(SOON_S)
        with pytest.raises(EngineError, match="was not read, or got no text"):
            list(idle)


def test_stream_in_a_reference_cycle_loses_its_slot() -> None:
    backend = SpeakingBackend(max_streams=1, num_frames=1_000)
    with backend.load(max_streams=1) as tts:
        gc.disable()
        try:
            stream = tts.stream("Hello.", guard=False, seed=1)
            next(stream)
            cycle: list[object] = [stream]
            cycle.append(cycle)
            del stream, cycle
            assert next(tts.stream("Hello.", guard=False, seed=2)).codes[0, 0] == 2
        finally:
            gc.enable()


async def live_randomly(tts: TTS, seed: int, chance: Random) -> None:
    """Open, read, close early, cancel or raise. All chunks received are checked."""
    made: list[AudioChunk] = []
    text: str | AsyncIterator[str] = (
        words(chance.randrange(1, 4)) if chance.random() < 0.3 else "Hello."
    )
    num_read = chance.choice([0, 1, 2, 99])
    try:
        async with tts.astream(
            text, seed=seed, guard=False, chunk_frames=chance.randrange(1, 6)
        ) as stream:
            async for chunk in stream:
                made.append(chunk)
                if len(made) >= num_read:
                    if chance.random() < 0.3:
                        raise LookupError("of the reader")
                    break
    except LookupError:
        pass
    finally:
        whole = codes_of(made) if made else np.empty((0, 2))
        assert np.array_equal(whole, expected(seed, len(whole)))


def stress(num_tasks: int, num_threads: int, num_rounds: int) -> None:
    backend = SpeakingBackend(max_streams=8)
    wrong: list[BaseException] = []

    def read_in_thread(tts: TTS, number: int) -> None:
        chance = Random(number)
        try:
            for turn in range(num_rounds):
                seed = 1_000_000 + 1_000 * number + turn
                stream = tts.stream(
                    "Hello.", guard=False, seed=seed, chunk_frames=chance.randrange(1, 6)
                )
                made = list(itertools.islice(stream, chance.choice([0, 1, 3, 99])))
                whole = codes_of(made) if made else np.empty((0, 2))
                assert np.array_equal(whole, expected(seed, len(whole)))
                if chance.random() < 0.5:
                    stream.close()
        except BaseException as error:
            wrong.append(error)

    async def run(tts: TTS) -> None:
        tasks = []
        for seed in range(num_tasks):
            tasks.append(asyncio.create_task(live_randomly(tts, seed, Random(seed))))
            if seed % 7 == 0:
                Random(seed).choice(tasks).cancel()
            if seed % 20 == 0:
                await asyncio.sleep(0)
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert outcome is None or isinstance(outcome, asyncio.CancelledError), outcome

    with backend.load(max_streams=8, max_queue=10_000) as tts:
        threads = [
            threading.Thread(target=read_in_thread, args=(tts, n)) for n in range(num_threads)
        ]
        for thread in threads:
            thread.start()
        asyncio.run(run(tts))
        for thread in threads:
            thread.join(600)
            assert not thread.is_alive()
        assert not wrong
        gc.collect()
        wait_until_empty(tts.engine, backend)


def test_random_threads_and_tasks_leave_no_slot_behind() -> None:
    stress(num_tasks=100, num_threads=4, num_rounds=15)


@pytest.mark.slow
def test_many_random_threads_and_tasks_leave_no_slot_behind() -> None:
    stress(num_tasks=1_000, num_threads=16, num_rounds=1_000)


class Listener:
    """A stream that only receives text."""

    finish_reason = None

    def __init__(self) -> None:
        self.pieces: list[object] = []
        self.is_written = False

    def step(self) -> Wait:
        if self.is_written:
            raise StopIteration
        return Wait.TEXT

    @property
    def script(self) -> Listener:
        return self

    def feed(self, piece: object) -> None:
        self.pieces.append(piece)

    def finish(self, error: Exception | None = None) -> None:
        self.is_written = True

    def check_open(self) -> None: ...

    def close(self) -> None: ...


def test_long_piece_of_text_lets_other_tasks_run() -> None:
    text = "".join(f"word {n} " for n in range(1_000))
    listener, seen = Listener(), list[int]()

    async def watch() -> None:
        while not listener.is_written:
            seen.append(len(listener.pieces))
            await asyncio.sleep(0)

    async def listen() -> None:
        async def pieces() -> AsyncIterator[str]:
            yield text

        stream = AsyncStream(lambda wake: cast("Stream", listener), pieces(), LoopWakers())
        watching = asyncio.create_task(watch())
        assert [chunk async for chunk in stream] == []
        await watching

    asyncio.run(listen())
    assert "".join(map(str, listener.pieces)) == text
    assert len(listener.pieces) == -(-len(text) // 1_000)
    assert set(seen) >= set(range(1, len(listener.pieces)))


def test_loop_waker_schedules_one_call_for_several_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def listen() -> tuple[int, list[bool]]:
        loop = asyncio.get_running_loop()
        calls, events = [], [asyncio.Event() for _ in range(5)]
        call_soon = loop.call_soon_threadsafe

        def count(*arguments: Any) -> asyncio.Handle:
            calls.append(arguments)
            return call_soon(*arguments)

        monkeypatch.setattr(loop, "call_soon_threadsafe", count)
        waker = LoopWakers().get(loop)
        turn = threading.Thread(target=lambda: list(map(waker.wake, events)))
        turn.start()
        turn.join()
        await asyncio.gather(*(event.wait() for event in events))
        waker.wake(events[0])  # a second call, after the first has run
        return len(calls), [event.is_set() for event in events]

    num_calls, are_set = asyncio.run(asyncio.wait_for(listen(), 30))
    assert num_calls == 2
    assert all(are_set)


def test_loop_waker_works_after_an_interrupt() -> None:
    async def listen() -> None:
        loop = asyncio.get_running_loop()
        first, second, call_soon = asyncio.Event(), asyncio.Event(), loop.call_soon_threadsafe
        waker = LoopWakers().get(loop)

        def interrupt(*_: Any) -> asyncio.Handle:
            raise KeyboardInterrupt

        loop.call_soon_threadsafe = interrupt  # type: ignore[assignment,method-assign]
        with pytest.raises(KeyboardInterrupt):
            waker.wake(first)
        loop.call_soon_threadsafe = call_soon  # type: ignore[method-assign]
        waker.wake(second)
        await asyncio.gather(first.wait(), second.wait())

    asyncio.run(asyncio.wait_for(listen(), 30))


def test_loop_waker_of_a_deleted_loop_is_removed() -> None:
    wakers = LoopWakers()

    async def listen() -> None:
        wakers.get(asyncio.get_running_loop())

    asyncio.run(listen())
    gc.collect()
    assert not wakers._wakers
