"""`VivaceTTSService` in a pipecat pipeline, local and remote.

`pip install -e ".[test,integrations-test]"`; without pipecat these tests are skipped.
"""

from __future__ import annotations

import asyncio
import random
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.voice_sources import LIMIT_S, WAYS, VoiceUnderTest, speaking, voice_under_test

pytest.importorskip("pipecat")
pytestmark = pytest.mark.filterwarnings("ignore")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # warnings of the framework
    from pipecat.frames.frames import (
        CancelFrame,
        EndFrame,
        ErrorFrame,
        Frame,
        InterruptionFrame,
        LLMFullResponseEndFrame,
        LLMFullResponseStartFrame,
        LLMTextFrame,
        MetricsFrame,
        TTSAudioRawFrame,
        TTSSpeakFrame,
        TTSStartedFrame,
        TTSStoppedFrame,
        TTSTextFrame,
        TTSUpdateSettingsFrame,
    )
    from pipecat.metrics.metrics import TTFBMetricsData, TTSUsageMetricsData
    from pipecat.pipeline.pipeline import Pipeline
    from pipecat.pipeline.worker import PipelineParams, PipelineWorker
    from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
    from pipecat.services.tts_service import TextAggregationMode
    from pipecat.workers.runner import WorkerRunner

    from vivace.integrations.pipecat import VivaceTTSService

WORDS = ["Hel", "lo ", "there, ", "this ", "is ", "an ", "agent. ", "It ", "speaks", "."]
TEXT = "".join(WORDS)
NUM_INTERRUPTIONS = 200


@pytest.fixture(params=WAYS)
def under_test(request: Any, tmp_path: Path) -> Iterator[VoiceUnderTest]:
    with voice_under_test(request.param, tmp_path) as under_test:
        yield under_test


class Recorder(FrameProcessor):  # type: ignore[misc]
    """Records and passes on all frames."""

    def __init__(self) -> None:
        super().__init__(enable_direct_mode=True)
        self.frames: list[Frame] = []
        self.news = asyncio.Event()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        self.frames.append(frame)
        self.news.set()
        await self.push_frame(frame, direction)


@dataclass
class Conversation:
    worker: PipelineWorker
    after: Recorder
    before: Recorder  # of the service; records upstream frames
    running: asyncio.Future[Any] | None = None
    sent: list[Frame] = field(default_factory=list)

    async def send(self, *frames: Frame) -> None:
        for frame in frames:
            await self.worker.queue_frame(frame)

    async def say(self, *words: str) -> None:
        await self.send(
            LLMFullResponseStartFrame(), *map(LLMTextFrame, words), LLMFullResponseEndFrame()
        )

    async def until(
        self, kind: type, count: int = 1, recorder: Recorder | None = None
    ) -> list[Frame]:
        """Wait for `count` frames of a kind and return all recorded frames."""
        recorder = recorder or self.after

        async def wait() -> None:
            while sum(isinstance(frame, kind) for frame in recorder.frames) < count:
                recorder.news.clear()
                await recorder.news.wait()

        await asyncio.wait_for(wait(), LIMIT_S)
        return list(recorder.frames)

    def audio(self) -> list[TTSAudioRawFrame]:
        return [frame for frame in self.after.frames if isinstance(frame, TTSAudioRawFrame)]

    @property
    def seconds(self) -> float:
        return sum(len(f.audio) / 2 / f.sample_rate for f in self.audio())


@asynccontextmanager
async def pipeline(service: VivaceTTSService, **params: Any) -> AsyncIterator[Conversation]:
    before, after = Recorder(), Recorder()
    worker = PipelineWorker(
        Pipeline([before, service, after]),
        cancel_on_idle_timeout=False,
        enable_rtvi=False,
        params=PipelineParams(**params),
    )
    started = asyncio.Event()

    @worker.event_handler("on_pipeline_started")
    async def _started(*_: Any) -> None:
        started.set()

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    running = asyncio.ensure_future(runner.run())
    await asyncio.wait_for(started.wait(), LIMIT_S)
    talk = Conversation(worker, after, before, running)
    try:
        yield talk
        if not running.done():
            await worker.queue_frame(EndFrame())
        await asyncio.wait_for(running, LIMIT_S)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await asyncio.wait_for(test(), 3 * LIMIT_S)

    asyncio.run(whole())


def test_reply_is_spoken_while_it_is_written(under_test: VoiceUnderTest) -> None:
    async def test() -> None:
        async with pipeline(VivaceTTSService(under_test.voice)) as talk:
            await talk.send(LLMFullResponseStartFrame(), *map(LLMTextFrame, WORDS[:-1]))
            await talk.until(TTSAudioRawFrame)  # the reply is not complete yet
            await talk.send(LLMTextFrame(WORDS[-1]), LLMFullResponseEndFrame())
            frames = await talk.until(LLMFullResponseEndFrame)
            kinds = [type(frame) for frame in frames]
            assert kinds.index(TTSStartedFrame) < kinds.index(TTSAudioRawFrame)
            assert kinds.index(TTSStoppedFrame) > max(
                at for at, kind in enumerate(kinds) if kind is TTSAudioRawFrame
            )
            assert {frame.sample_rate for frame in talk.audio()} == {24_000}
            assert len({frame.context_id for frame in talk.audio()}) == 1
            assert talk.seconds == pytest.approx(2.0, abs=0.01)
            texts = [frame.text for frame in frames if isinstance(frame, TTSTextFrame)]
            assert " ".join(text.strip() for text in texts).split() == TEXT.split()
            assert not any(isinstance(frame, ErrorFrame) for frame in talk.before.frames)
            await under_test.wait_free()

    run(test)


def test_interruption_stops_the_audio_and_frees_the_slot(under_test: VoiceUnderTest) -> None:
    under_test.speak_at_length(0.001)

    async def test() -> None:
        async with pipeline(VivaceTTSService(under_test.voice)) as talk:
            await talk.send(LLMFullResponseStartFrame(), *map(LLMTextFrame, WORDS))
            await talk.until(TTSAudioRawFrame, 3)
            await talk.send(InterruptionFrame())
            frames = await talk.until(InterruptionFrame)
            await under_test.wait_free()
            stopped_at = next(i for i, f in enumerate(frames) if isinstance(f, InterruptionFrame))
            under_test.speak_briefly()
            await talk.say(*WORDS)  # the next turn
            await talk.until(TTSStoppedFrame)
            after = talk.after.frames[stopped_at:]
            spoken = [frame for frame in after if isinstance(frame, TTSAudioRawFrame)]
            assert sum(len(frame.audio) for frame in spoken) == 25 * 1_920 * 2
            assert len({frame.context_id for frame in spoken}) == 1

    run(test)


def test_two_speak_frames_and_a_reply_keep_their_order(under_test: VoiceUnderTest) -> None:
    async def test() -> None:
        async with pipeline(VivaceTTSService(under_test.voice)) as talk:
            await talk.send(TTSSpeakFrame("One moment."), TTSSpeakFrame("Still here."))
            await talk.say(*WORDS)
            await talk.until(TTSStoppedFrame, 3)
            ids = [frame.context_id for frame in talk.audio()]
            assert len(dict.fromkeys(ids)) == 3
            assert ids == sorted(ids, key=list(dict.fromkeys(ids)).index)  # contexts in order
            assert talk.seconds == pytest.approx(6.0, abs=0.01)

    run(test)


def test_end_frame_inside_a_reply_speaks_the_text_so_far(under_test: VoiceUnderTest) -> None:
    async def test() -> None:
        async with pipeline(VivaceTTSService(under_test.voice)) as talk:
            await talk.send(LLMFullResponseStartFrame(), *map(LLMTextFrame, WORDS), EndFrame())
            assert talk.running is not None
            await asyncio.wait_for(asyncio.shield(talk.running), LIMIT_S)
            assert talk.seconds == pytest.approx(2.0, abs=0.01)
            await under_test.wait_free()

    run(test)


def test_cancelled_pipeline_frees_all_slots(under_test: VoiceUnderTest) -> None:
    under_test.speak_at_length(0.001)

    async def test() -> None:
        async with pipeline(VivaceTTSService(under_test.voice)) as talk:
            await talk.send(LLMFullResponseStartFrame(), *map(LLMTextFrame, WORDS))
            await talk.until(TTSAudioRawFrame)
            await talk.send(CancelFrame())
            assert talk.running is not None
            await asyncio.wait_for(asyncio.shield(talk.running), LIMIT_S)
        await under_test.wait_free()

    run(test)


def test_metrics_report_first_audio_and_characters(under_test: VoiceUnderTest) -> None:
    async def test() -> None:
        service = VivaceTTSService(under_test.voice)
        async with pipeline(service, enable_metrics=True, enable_usage_metrics=True) as talk:
            await talk.say(*WORDS)
            await talk.until(TTSStoppedFrame)
            found = [d for f in talk.after.frames if isinstance(f, MetricsFrame) for d in f.data]
            (first,) = [d for d in found if isinstance(d, TTFBMetricsData) and d.value]
            assert 0 < first.value < LIMIT_S
            assert [d.value for d in found if isinstance(d, TTSUsageMetricsData)] == [len(TEXT)]

    run(test)


def test_sentences_are_spoken_at_8_khz(under_test: VoiceUnderTest) -> None:
    async def test() -> None:
        service = VivaceTTSService(
            under_test.voice,
            sample_rate=8_000,
            text_aggregation_mode=TextAggregationMode.SENTENCE,
            settings=VivaceTTSService.Settings(voice="heart", language="en-US", speed=1.0),
            options={"seed": 7},
        )
        async with pipeline(service) as talk:
            await talk.say(*WORDS)
            await talk.until(TTSStoppedFrame)
            assert {frame.sample_rate for frame in talk.audio()} == {8_000}
            assert talk.seconds == pytest.approx(2.0, abs=0.01)

    run(test)


def test_rejected_voice_gives_an_error_frame_and_the_next_reply_is_spoken(
    under_test: VoiceUnderTest,
) -> None:
    async def test() -> None:
        settings = VivaceTTSService.Settings(voice="nobody")
        async with pipeline(VivaceTTSService(under_test.voice, settings=settings)) as talk:
            await talk.say(*WORDS)
            frames = await talk.until(ErrorFrame, recorder=talk.before)
            (error,) = [frame for frame in frames if isinstance(frame, ErrorFrame)][:1]
            assert "no voice named 'nobody'" in error.error
            await talk.until(TTSStoppedFrame)
            await talk.send(TTSUpdateSettingsFrame(delta=VivaceTTSService.Settings(voice="heart")))
            await talk.say(*WORDS)
            await talk.until(TTSStoppedFrame, 2)
            assert talk.seconds == pytest.approx(2.0, abs=0.01)

    run(test)


def test_text_above_the_limit_gives_an_error_frame_after_its_audio(
    under_test: VoiceUnderTest,
) -> None:
    async def test() -> None:
        service = VivaceTTSService(under_test.voice, max_text_chars=200)
        async with pipeline(service) as talk:
            await talk.send(LLMFullResponseStartFrame(), *map(LLMTextFrame, WORDS))
            await talk.until(TTSAudioRawFrame)
            await talk.send(*(LLMTextFrame("and on ") for _ in range(100)))
            frames = await talk.until(ErrorFrame, recorder=talk.before)
            assert "the limit is 200" in next(
                frame.error for frame in frames if isinstance(frame, ErrorFrame)
            )
            await talk.until(TTSStoppedFrame)
            await talk.send(LLMFullResponseEndFrame())
            await under_test.wait_free()

    run(test)


def test_interruptions_at_random_times_free_all_slots(
    under_test: VoiceUnderTest, record_property: Callable[[str, object], None]
) -> None:
    record_property("interruptions", NUM_INTERRUPTIONS)
    under_test.speak_at_length(0.0005)
    chance = random.Random(15)

    async def test() -> None:
        async with pipeline(VivaceTTSService(under_test.voice)) as talk:
            for turn in range(NUM_INTERRUPTIONS):
                words = WORDS[: chance.randrange(len(WORDS) + 1)]
                is_calm = (
                    turn == 0
                    or sum(isinstance(frame, InterruptionFrame) for frame in talk.after.frames)
                    == turn
                )  # otherwise the last interruption may drop these words
                await talk.send(LLMFullResponseStartFrame(), *map(LLMTextFrame, words))
                if chance.random() < 0.3:
                    await talk.send(LLMFullResponseEndFrame())
                if is_calm and len(words) >= 4 and chance.random() < 0.5:
                    wanted = len(talk.audio()) + chance.randrange(1, 4)
                    await talk.until(TTSAudioRawFrame, wanted)
                else:
                    await asyncio.sleep(chance.random() / 50)
                await talk.send(InterruptionFrame())
                if chance.random() < 0.8:
                    await talk.until(InterruptionFrame, turn + 1)
            await talk.until(InterruptionFrame, NUM_INTERRUPTIONS)
            await under_test.wait_free()
            under_test.speak_briefly()
            talk.after.frames.clear()
            await talk.say(*WORDS)
            await talk.until(TTSStoppedFrame)
            assert talk.seconds == pytest.approx(2.0, abs=0.01)

    run(test)


@pytest.mark.parametrize("way", WAYS)
def test_words_arrive_when_they_are_played(way: str, tmp_path: Path) -> None:
    async def test() -> None:
        with speaking(way, tmp_path) as voice:
            service = VivaceTTSService(voice, word_timestamps=True, options={"seed": 7})
            async with pipeline(service) as talk:
                await talk.say(*WORDS)
                frames = await talk.until(TTSStoppedFrame)
                words = [frame for frame in frames if isinstance(frame, TTSTextFrame)]
                assert " ".join(frame.text.strip() for frame in words).split() == TEXT.split()
                times = [frame.pts for frame in words]
                assert times == sorted(times)
                assert 0.3e9 < times[-1] - times[0] < talk.seconds * 1e9
                assert len(set(times)) >= len(times) - 1

    run(test)


def test_lost_server_gives_an_error_frame(tmp_path: Path) -> None:
    async def test() -> None:
        with voice_under_test("over a socket", tmp_path, drain_timeout_s=0.1) as under_test:
            under_test.speak_at_length(0.001)
            async with pipeline(VivaceTTSService(under_test.voice)) as talk:
                await talk.say(*WORDS)
                await talk.until(TTSAudioRawFrame)
                assert under_test.server is not None
                under_test.server.loop.call_soon_threadsafe(under_test.server.server.stop)
                frames = await talk.until(ErrorFrame, recorder=talk.before)
                assert any(
                    "ended before the speech did" in frame.error or "the server" in frame.error
                    for frame in frames
                    if isinstance(frame, ErrorFrame)
                )
                await talk.until(TTSStoppedFrame)

    run(test)


def test_missing_server_gives_an_error_frame_with_a_hint() -> None:
    async def test() -> None:
        async with pipeline(VivaceTTSService("http://127.0.0.1:9")) as talk:
            frames = await talk.until(ErrorFrame, recorder=talk.before)
            assert "is `vivace serve` running there?" in next(
                frame.error for frame in frames if isinstance(frame, ErrorFrame)
            )

    run(test)
