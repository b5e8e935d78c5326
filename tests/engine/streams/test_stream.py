"""`Stream`: audio equal to offline speech, concurrent streams, slots, live text and runaways."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.recording_backend import assert_same_audio, interleave
from tests.support.slots import plain_backend
from vivace import TTS, Audio
from vivace.audio.clip import AudioChunk
from vivace.backends.base import Frames
from vivace.engine.streams.stream import Stream
from vivace.errors import NumericError, RequestError, RunawayError, StreamClosedError

TEXT = "A stream of words, one after another."


@pytest.fixture(scope="module")
def tts(tiny_folder: Path) -> Iterator[TTS]:
    with TTS.load(tiny_folder / "custom_voice", device="cpu") as loaded:
        yield loaded


def collect(stream: Stream, chunks: list[AudioChunk]) -> None:
    for chunk in stream:
        chunks.append(chunk)  # kept if the next chunk raises


def num_slots(tts: TTS) -> int:
    backend: Any = tts.engine.backend
    return tts.engine.call(lambda: len(backend._slots))


@pytest.fixture(scope="module")
def offline(tts: TTS) -> list[Audio]:
    """The same text with three seeds."""
    options: dict[str, Any] = {"voice": "ryan", "max_frames": 24, "trim": False}
    return [tts.speak(TEXT, seed=seed, **options) for seed in range(3)]


@given(ramp=st.lists(st.integers(1, 9), min_size=1, max_size=4), seed=st.integers(0, 2))
@settings(deadline=None, max_examples=5)
def test_streamed_audio_equals_offline_audio(
    tts: TTS, offline: list[Audio], ramp: list[int], seed: int
) -> None:
    chunks = list(tts.stream(TEXT, voice="ryan", seed=seed, max_frames=24, chunk_frames=ramp))
    assert_same_audio(chunks, offline[seed], atol=5e-5)


def test_chunk_sizes_ramp_and_the_last_chunk_is_marked(tts: TTS) -> None:
    chunks = list(tts.stream(TEXT, seed=1, max_frames=30, min_frames=30))
    assert [len(chunk.codes) for chunk in chunks] == [1, 2, 4, 8, 8, 7]
    assert [chunk.is_last for chunk in chunks] == [False] * 5 + [True]
    assert chunks[-1].finish_reason == "length"
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * 5
    assert np.allclose([c.start_s for c in chunks], [0, 0.08, 0.24, 0.56, 1.2, 1.84])


def test_interleaved_streams_do_not_affect_each_other(tts: TTS) -> None:
    options: dict[str, Any] = {"max_frames": 24, "min_frames": 24, "chunk_frames": 3}
    alone = [
        np.concatenate([c.codes for c in tts.stream(TEXT, voice=voice, seed=3, **options)])
        for voice in ("ryan", "vivian")
    ]
    streams = [tts.stream(TEXT, voice=voice, seed=3, **options) for voice in ("ryan", "vivian")]
    made: list[list[np.ndarray]] = [[], []]
    for pair in zip(*streams, strict=True):
        for index, chunk in enumerate(pair):
            made[index].append(chunk.codes)
    for expected, pieces in zip(alone, made, strict=True):
        assert np.array_equal(np.concatenate(pieces), expected)


def test_streams_of_several_threads_share_the_engine(tts: TTS) -> None:
    options: dict[str, Any] = {"max_frames": 10, "min_frames": 10}
    expected = [tts.speak(TEXT, seed=seed, **options).codes for seed in range(4)]
    found: dict[int, np.ndarray] = {}

    def run(seed: int) -> None:
        chunks = list(tts.stream(TEXT, seed=seed, **options))
        found[seed] = np.concatenate([chunk.codes for chunk in chunks])

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(found[seed], expected[seed]) for seed in range(4))


def test_closed_stream_frees_its_slot_and_raises(tts: TTS) -> None:
    before = num_slots(tts)
    stream = tts.stream(TEXT, seed=1, max_frames=30)
    next(stream)
    assert num_slots(tts) == before + 1
    stream.close()
    assert num_slots(tts) == before
    assert stream.finish_reason == "cancelled"
    with pytest.raises(StreamClosedError, match="closed"):
        next(stream)
    stream.close()


def test_dropped_stream_frees_its_slot(tts: TTS) -> None:
    before = num_slots(tts)
    stream = tts.stream(TEXT, seed=1, max_frames=30)
    next(stream)
    del stream
    gc.collect()
    assert num_slots(tts) == before


def test_finished_stream_reports_usage(tts: TTS) -> None:
    with tts.stream(TEXT, seed=1, max_frames=6, min_frames=6) as stream:
        assert repr(stream) == "<Stream, 0.00 s, open>"
        list(stream)
        with pytest.raises(StopIteration):
            next(stream)
        assert stream.finish_reason == "length"
    usage = stream.usage
    assert repr(stream) == "<Stream, 0.48 s, length>"
    assert usage.frames == 6
    assert usage.audio_s == pytest.approx(0.48)
    assert usage.first_audio_ms is not None
    assert usage.first_audio_ms <= 1000 * usage.wall_s


def test_failed_stream_has_no_last_chunk(tts: TTS, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = plain_backend(tts)
    step, count = backend.step, 0

    def fail_later(slots: Sequence[int], num_frames: int) -> Frames:
        nonlocal count
        count += 1
        frames = step(slots, num_frames)
        return Frames(frames.codes, frames.lengths, ("failed",)) if count > 2 else frames

    monkeypatch.setattr(backend, "step", fail_later)
    chunks: list[AudioChunk] = []
    stream = tts.stream(TEXT, seed=1, max_frames=30, min_frames=30, chunk_frames=2)
    with pytest.raises(NumericError):
        collect(stream, chunks)
    assert chunks
    assert not any(chunk.is_last for chunk in chunks)


@pytest.mark.parametrize("bad", [0, -1, [], [1, 0], "8"])
def test_invalid_chunk_size_is_rejected(tts: TTS, bad: object) -> None:
    with pytest.raises(RequestError, match="chunk_frames"):
        tts.stream(TEXT, chunk_frames=bad)  # type: ignore[arg-type]


# -- live text -------------------------------------------------------------------------------


LIVE_OPTIONS: dict[str, Any] = {"seed": 5, "max_frames": 40, "voice": "ryan", "trim": False}


@pytest.fixture(scope="module")
def streamed_layout(tts: TTS) -> Audio:
    return tts.speak(TEXT, text_layout="streamed", **LIVE_OPTIONS)


@given(cuts=st.lists(st.integers(1, len(TEXT) - 1), max_size=8, unique=True))
@settings(deadline=None, max_examples=4)
def test_live_text_equals_whole_text(tts: TTS, streamed_layout: Audio, cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(TEXT)]
    pieces = [TEXT[a:b] for a, b in itertools.pairwise(edges)]
    live = tts.speak(iter(pieces), **LIVE_OPTIONS)
    assert np.array_equal(live.codes, streamed_layout.codes)


def test_speech_begins_before_the_text_is_written(tts: TTS) -> None:
    written: list[str] = []

    def pieces() -> Iterator[str]:
        for word in ("Hello ", "there, ", "how ", "are ", "you?"):
            written.append(word)
            yield word

    stream = tts.stream(pieces(), seed=1, max_frames=60)
    next(stream)
    assert len(written) <= 2
    list(stream)
    assert len(written) == 5


def test_error_of_an_iterator_is_raised_after_its_text(tts: TTS) -> None:
    def pieces() -> Iterator[str]:
        yield "What was said "
        raise ConnectionError("the writer went away")

    chunks: list[AudioChunk] = []
    stream = tts.stream(pieces(), seed=1, max_frames=60)
    with pytest.raises(ConnectionError, match="went away"):
        collect(stream, chunks)
    assert chunks[-1].is_last
    expected = tts.speak("What was said ", text_layout="streamed", seed=1, max_frames=60)
    assert np.array_equal(np.concatenate([c.codes for c in chunks]), expected.codes)
    assert num_slots(tts) == 0


@pytest.mark.parametrize("pieces", [[], ["", ""]])
def test_live_text_without_words_is_rejected(tts: TTS, pieces: list[str]) -> None:
    with pytest.raises(RequestError, match="nothing to speak"):
        list(tts.stream(iter(pieces)))


def test_live_pieces_must_be_strings(tts: TTS) -> None:
    with pytest.raises(RequestError, match="strings, not int"):
        list(tts.stream(iter([1])))  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="live text"):
        tts.stream(iter(["a"]), text_layout="whole")


def test_live_pieces_that_are_none_are_skipped(tts: TTS) -> None:
    pieces = [None, "What was ", None, "said", None]
    expected = tts.speak(iter(["What was ", "said"]), seed=1, max_frames=20)
    assert tts.speak(iter(pieces), seed=1, max_frames=20) == expected

    async def write() -> AsyncIterator[str | None]:
        for piece in pieces:
            yield piece

    async def collect_all() -> list[AudioChunk]:
        stream = tts.astream(write(), seed=1, max_frames=20)
        return [chunk async for chunk in stream]

    codes = [chunk.codes for chunk in asyncio.run(collect_all())]
    assert np.array_equal(np.concatenate(codes), expected.codes)


# -- asyncio ---------------------------------------------------------------------------------


def test_astream_equals_stream(tts: TTS) -> None:
    async def words() -> AsyncIterator[str]:
        for word in TEXT.split(" "):
            await asyncio.sleep(0)
            yield word + " "

    async def run(text: str | AsyncIterator[str]) -> np.ndarray:
        stream = tts.astream(text, seed=2, max_frames=40)
        assert repr(stream) == "<AsyncStream, 0.00 s, open>"
        chunks = [chunk async for chunk in stream]
        return np.concatenate([chunk.codes for chunk in chunks])

    expected = tts.speak(TEXT + " ", seed=2, max_frames=40, text_layout="streamed").codes
    assert np.array_equal(asyncio.run(run(words())), expected)
    assert np.array_equal(asyncio.run(run(TEXT)), tts.speak(TEXT, seed=2, max_frames=40).codes)


def test_astreams_beyond_the_slots_all_finish(tiny_folder: Path) -> None:
    async def run(tts: TTS, seed: int) -> int:
        chunks = [c async for c in tts.astream(TEXT, seed=seed, max_frames=5, min_frames=5)]
        return sum(len(chunk.codes) for chunk in chunks)

    async def run_all(tts: TTS) -> list[int]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        return await asyncio.wait_for(asyncio.gather(*(run(tts, n) for n in range(10))), 300)

    with TTS.load(tiny_folder / "custom_voice", device="cpu", max_streams=2) as tts:
        assert asyncio.run(run_all(tts)) == [5] * 10


@pytest.mark.parametrize("delay_s", [0, 0.3], ids=["", "the thread that waits is slow"])
def test_cancelled_astream_waiting_for_text_frees_its_slot(
    tts: TTS, monkeypatch: pytest.MonkeyPatch, delay_s: float
) -> None:
    is_waiting, later = asyncio.Event(), list[str]()
    run_threadsafe = asyncio.run_coroutine_threadsafe

    def run_slowly(*arguments: Any) -> Any:
        future = run_threadsafe(*arguments)
        time.sleep(delay_s)  # the task is cancelled before this returns
        return future

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", run_slowly)

    async def slow() -> AsyncIterator[str]:
        yield "Only one "
        is_waiting.set()
        await asyncio.sleep(20)
        later.append("it was waited for")
        yield "never"

    async def run() -> None:
        async for _ in tts.astream(slow(), seed=2):
            pass

    async def cancel() -> None:
        task = asyncio.create_task(run())
        await is_waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert num_slots(tts) == 0
    assert later == []


# -- runaways --------------------------------------------------------------------------------


def test_runaway_is_repeated_once_then_raises(tts: TTS, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivace.engine.utterances.utterance.frame_budget", lambda num_ids: 12)
    seeds: list[int] = []
    settle = tts.loaded._settle_sampling

    def watch(changes: dict[str, Any]) -> object:
        params = settle({**changes, "min_frames": 100})
        seeds.append(params.seed or 0)
        return params

    monkeypatch.setattr(tts.loaded, "_settle_sampling", watch)
    with pytest.raises(RunawayError, match="twice"):
        tts.speak("Without end.")
    assert len(seeds) == len(set(seeds)) == 2


def test_runaway_with_given_seed_is_returned(tts: TTS, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivace.engine.utterances.utterance.frame_budget", lambda num_ids: 12)
    audio = tts.speak("Without end.", seed=1, min_frames=100)
    assert audio.finish_reason == "length"
    assert len(audio.codes) == 12
    unguarded = tts.speak("Without end.", seed=1, min_frames=30, max_frames=30, guard=False)
    assert len(unguarded.codes) == 30


def test_stall_is_stopped_and_trimmed(tts: TTS, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "vivace.engine.utterances.guard.StallDetector.observe",
        lambda self, codes, levels: 10 if len(codes) == 16 else 0,  # in the second turn
    )
    audio = tts.speak("Stuck.", seed=1, min_frames=100)
    assert audio.finish_reason == "stall"
    assert len(audio.codes) == 8 + 16
    assert len(audio.samples) <= 14 * 1920
    whole = tts.speak("Stuck.", seed=1, min_frames=100, trim=False)
    assert len(whole.samples) == 24 * 1920


# -- other streams ------------------------------------------------------------------------------


@pytest.mark.ci
@given(
    seeds=st.lists(st.integers(0, 2**40), min_size=2, max_size=3),
    ramp=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    order=st.randoms(use_true_random=False),
)
@settings(deadline=None, max_examples=3)
def test_other_streams_do_not_change_audio(
    tts: TTS, seeds: list[int], ramp: list[int], order: Random
) -> None:
    options: dict[str, Any] = {"voice": "ryan", "max_frames": 12}
    alone = [tts.speak(TEXT, seed=seed, trim=False, **options) for seed in seeds]
    streams = [tts.stream(TEXT, seed=seed, chunk_frames=ramp, **options) for seed in seeds]
    for chunks, audio in zip(interleave(streams, order), alone, strict=True):
        assert_same_audio(chunks, audio, atol=5e-5)


# -- empty chunks --------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"trim": True}, {"speed": 4.0}, {"trim": True, "speed": 0.5}])
def test_stream_gives_no_empty_chunk_but_the_last(tts: TTS, options: dict[str, Any]) -> None:
    whole = tts.speak(TEXT, seed=3, min_frames=12, max_frames=12, **{"trim": False, **options})
    chunks = list(tts.stream(TEXT, seed=3, min_frames=12, max_frames=12, chunk_frames=1, **options))
    assert all(len(chunk.samples) for chunk in chunks[:-1])
    assert np.array_equal(np.concatenate([chunk.codes for chunk in chunks]), whole.codes)
    assert sum(len(chunk.samples) for chunk in chunks) == len(whole.samples)


def test_trimmed_stream_holds_silence_and_its_codes_until_the_first_sound(
    tts: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vivace.audio.trim.AUDIBLE_SAMPLE", 2.0)  # no frame is loud enough
    options: dict[str, Any] = {"seed": 3, "min_frames": 6, "max_frames": 6, "chunk_frames": 1}
    (only,) = tts.stream(TEXT, trim=True, **options)
    assert only.is_last
    assert len(only.codes) == 6
    assert len(only.samples) == 6 * 1920
    assert only.start_s == 0.0


def test_closed_stream_that_holds_empty_chunks_frees_its_slot(
    tts: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vivace.audio.trim.AUDIBLE_SAMPLE", 2.0)
    stream = tts.stream(TEXT, trim=True, seed=3, min_frames=400, max_frames=400, guard=False)
    reader = threading.Thread(target=lambda: list(itertools.islice(stream, 1)))
    reader.start()
    while not tts.engine.num_running:
        time.sleep(0.001)
    stream.close()
    reader.join(60)
    assert not reader.is_alive()
    assert stream.finish_reason == "cancelled"
    tts.engine.call(lambda: None)
    assert tts.engine.num_running == 0
