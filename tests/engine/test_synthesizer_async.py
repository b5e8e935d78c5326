"""`aspeak` and `await astream(...)`: whole texts and errors before the first chunk."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.scripted_backend import SpeakingBackend, wait_until_empty
from vivace import TTS, Audio
from vivace.engine.streams.async_stream import LoopWakers
from vivace.errors import (
    BatchError,
    NumericError,
    QueueFullError,
    RequestError,
    RunawayError,
    StreamClosedError,
    UnknownVoiceError,
)
from vivace.prompt import Prompt
from vivace.speech import SamplingParams

SOON_S = 60  # ample on a busy machine
OPTIONS: dict[str, Any] = {"seed": 5, "min_frames": 6, "max_frames": 12}
TEXTS = ["One text.", "Another text, which is longer.", "The third."]


@pytest.fixture(scope="module")
def tts(tiny_folder: Path) -> Iterator[TTS]:
    with TTS.load(tiny_folder / "custom_voice", device="cpu") as loaded:
        yield loaded


async def pieces(*words: str) -> AsyncIterator[str]:
    for word in words:
        await asyncio.sleep(0)
        yield word


# -- aspeak --------------------------------------------------------------------------------------


def test_aspeak_returns_the_audio_of_speak(tts: TTS) -> None:
    options = {**OPTIONS, "voice": "ryan", "speed": 1.5}
    assert asyncio.run(tts.aspeak(TEXTS[0], **options)) == tts.speak(TEXTS[0], **options)


@pytest.mark.ci
def test_aspeak_of_a_list_returns_the_batch_of_speak(tts: TTS) -> None:
    assert asyncio.run(tts.aspeak(TEXTS, **OPTIONS)) == tts.speak(TEXTS, **OPTIONS)
    assert asyncio.run(tts.aspeak(tuple(TEXTS), **OPTIONS)) == tts.speak(TEXTS, **OPTIONS)
    assert asyncio.run(tts.aspeak([], **OPTIONS)) == []


@pytest.mark.parametrize("live", ["iterator", "async iterator"])
def test_aspeak_reads_live_text(tts: TTS, live: str) -> None:
    words = ("Some ", "live ", "text.")
    expected = tts.speak(iter(words), **OPTIONS)
    text: Any = iter(words) if live == "iterator" else pieces(*words)
    assert asyncio.run(tts.aspeak(text, **OPTIONS)) == expected


@pytest.mark.default_cases(1)
@pytest.mark.parametrize("text", ["A longer text.", ["Two", "texts", "of five."]])
def test_aspeak_of_long_text_opens_it_in_another_thread(
    tts: TTS, monkeypatch: pytest.MonkeyPatch, text: Any
) -> None:
    expected = tts.speak(text, **OPTIONS)
    is_main = set()
    opened = tts.synthesizer.open

    def watch(*arguments: Any, **options: Any) -> Any:
        is_main.add(threading.current_thread() is threading.main_thread())
        return opened(*arguments, **options)

    monkeypatch.setattr(tts.synthesizer, "open", watch)
    for limit in (10_000, 12):
        monkeypatch.setattr("vivace.engine.synthesizer.LONG_TEXT", limit)
        is_main.clear()
        assert asyncio.run(tts.aspeak(text, **OPTIONS)) == expected
        assert is_main == {limit == 10_000}


def test_aspeak_refuses_requests_like_speak(tts: TTS) -> None:
    async def run() -> None:
        with pytest.raises(UnknownVoiceError):
            await tts.aspeak("Hello.", voice="nobody")
        with pytest.raises(RequestError, match="did you mean seed"):
            await tts.aspeak("Hello.", sed=3)  # type: ignore[call-overload]
        with pytest.raises(RequestError, match="text 1 of the batch"):
            await tts.aspeak(["Hello.", ""])
        with pytest.raises(RequestError, match="not int"):
            await tts.aspeak(["Hello.", 3])  # type: ignore[list-item]
        with pytest.raises(RequestError, match="not int"):
            await tts.aspeak(3)  # type: ignore[call-overload]

    asyncio.run(run())


def test_aspeak_tries_a_runaway_again_and_then_raises(
    tts: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "vivace.engine.utterances.guard.StallDetector.observe",
        lambda self, codes, samples: 10 if len(codes) else 0,
    )
    with pytest.raises(RunawayError, match="twice"):
        asyncio.run(tts.aspeak("Stuck.", min_frames=100))
    audio = asyncio.run(tts.aspeak("Stuck.", min_frames=100, seed=1))
    assert audio.finish_reason == "stall"


def test_many_aspeaks_run_at_once_without_threads_of_their_own() -> None:
    backend = SpeakingBackend(max_streams=64)
    num_threads = threading.active_count()
    most = 0

    async def run(tts: TTS) -> list[Audio]:
        async def speak(seed: int) -> Audio:
            nonlocal most
            audio = await tts.aspeak("Hello.", seed=seed, guard=False, trim=False)
            most = max(most, threading.active_count())
            return audio

        return await asyncio.gather(*map(speak, range(100)))

    with backend.load(max_streams=64, max_queue=100) as tts:
        for seed, audio in enumerate(asyncio.run(run(tts))):
            assert set(audio.codes[:, 0]) == {seed}
        wait_until_empty(tts.engine, backend)
    assert most <= num_threads + 2
    assert max(count for count, _ in backend.steps) > 1


@pytest.mark.parametrize("text", ["Hello.", ["Hello.", "Again."], "live"])
def test_cancelled_aspeak_frees_its_slots(text: Any) -> None:
    backend = SpeakingBackend(num_frames=1_000_000)

    async def run(tts: TTS) -> None:
        source = pieces("Hello, ", "this ", "is ", "live.") if text == "live" else text
        task = asyncio.create_task(tts.aspeak(source, guard=False, live="word"))
        while not tts.engine.num_running:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with backend.load() as tts:
        asyncio.run(asyncio.wait_for(run(tts), SOON_S))
        wait_until_empty(tts.engine, backend)


def test_aspeak_cancelled_while_it_opens_in_a_thread_ends_in_order(
    tts: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_opening, may_open = threading.Event(), threading.Event()
    opened = tts.synthesizer.open

    def slowly(*arguments: Any, **options: Any) -> Any:
        is_opening.set()
        assert may_open.wait(SOON_S)
        return opened(*arguments, **options)

    monkeypatch.setattr(tts.synthesizer, "open", slowly)
    monkeypatch.setattr("vivace.engine.synthesizer.LONG_TEXT", 0)

    async def run() -> None:
        task = asyncio.create_task(tts.aspeak("Hello.", **OPTIONS))
        while not is_opening.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()  # the task waits for its thread
        may_open.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(run(), SOON_S))
    tts.engine.call(lambda: None)
    assert tts.engine.num_running == tts.engine.num_waiting == 0


def test_failures_in_a_batch_of_aspeak_keep_the_other_audios() -> None:
    backend = SpeakingBackend()

    async def run(tts: TTS) -> None:
        with pytest.raises(BatchError) as caught:
            await tts.aspeak(["Hello.", "Broken.", "Again."], guard=False, seed=1)
        assert [audio is None for audio in caught.value.audios] == [False, True, False]
        assert isinstance(caught.value.errors[1], NumericError)

    with backend.load() as tts:
        admit, num_admitted = backend.admit, 0

        def fail_second(prompt: Prompt, sampling: SamplingParams) -> int:
            nonlocal num_admitted
            slot = admit(prompt, sampling)
            num_admitted += 1
            if num_admitted == 2:
                backend.open_slots[slot].fails_at = 0
            return slot

        backend.admit = fail_second  # type: ignore[method-assign]
        asyncio.run(run(tts))


# -- await astream -------------------------------------------------------------------------------


def test_await_of_astream_raises_errors_of_the_request(tts: TTS) -> None:
    async def run() -> None:
        with pytest.raises(UnknownVoiceError):
            await tts.astream("Hello.", voice="nobody")
        with pytest.raises(RequestError, match="nothing to speak"):
            await tts.astream("...")
        with pytest.raises(RequestError, match="temperature"):
            await tts.astream("Hello.", temperature=-1)
        with pytest.raises(RequestError, match="did you mean seed"):
            await tts.astream("Hello.", sed=3)  # type: ignore[call-arg]

    asyncio.run(run())
    assert tts.engine.num_running == tts.engine.num_waiting == 0


def test_awaited_astream_gives_every_chunk(tts: TTS) -> None:
    async def run() -> list[Any]:
        stream = await tts.astream(TEXTS[1], **OPTIONS, chunk_frames=2)
        return [chunk async for chunk in stream]

    chunks, expected = asyncio.run(run()), list(tts.stream(TEXTS[1], **OPTIONS, chunk_frames=2))
    assert len(chunks) == len(expected)
    for one, other in zip(chunks, expected, strict=True):
        assert np.array_equal(one.codes, other.codes)
        assert one.start_s == other.start_s


def test_await_of_astream_raises_that_the_queue_is_full() -> None:
    backend = SpeakingBackend(num_frames=1_000, max_streams=1)

    async def run(tts: TTS) -> None:
        first = await tts.astream("Hello.", guard=False, seed=1)
        while not tts.engine.num_running:
            await asyncio.sleep(0.001)
        with pytest.raises(QueueFullError):
            await tts.astream("Hello.", guard=False, seed=2)
        assert (await anext(first)).codes[0, 0] == 1
        await first.aclose()
        with pytest.raises(StreamClosedError):
            await first

    with backend.load(max_streams=1, max_queue=0) as tts:
        asyncio.run(run(tts))
        wait_until_empty(tts.engine, backend)


def test_await_of_live_astream_does_not_wait_for_text() -> None:
    backend = SpeakingBackend()

    async def run(tts: TTS) -> None:
        words: asyncio.Queue[str | None] = asyncio.Queue()

        async def text() -> AsyncIterator[str]:
            while (word := await words.get()) is not None:
                yield word

        stream = await tts.astream(text(), guard=False, seed=3)
        for word in ("Hello there. ", None):
            words.put_nowait(word)
        assert {int(code) async for chunk in stream for code in chunk.codes[:, 0]} == {3}

    with backend.load() as tts:
        asyncio.run(asyncio.wait_for(run(tts), SOON_S))


# -- LoopWaker ------------------------------------------------------------------------------------


def test_loop_waker_sets_event_added_during_its_callback() -> None:
    """The engine's thread may add an event while the callback runs."""

    async def listen() -> None:
        first, late = asyncio.Event(), asyncio.Event()
        waker = LoopWakers().get(asyncio.get_running_loop())

        class Due(deque[asyncio.Event]):
            def __bool__(self) -> bool:
                is_due = len(self) > 0
                if not is_due and not late.is_set() and first.is_set():
                    first.clear()  # once
                    waker.wake(late)
                return is_due

        waker._due = Due()
        waker.wake(first)
        await late.wait()

    asyncio.run(asyncio.wait_for(listen(), SOON_S))
