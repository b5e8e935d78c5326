"""`vivace.integrations.livekit.TTS` in LiveKit's streams and agent session, local and remote.

`pip install -e ".[test,integrations-test]"`; without livekit-agents these tests are skipped.
"""

from __future__ import annotations

import asyncio
import random
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.voice_sources import LIMIT_S, WAYS, VoiceUnderTest, speaking, voice_under_test

pytest.importorskip("livekit.agents")
pytestmark = pytest.mark.filterwarnings("ignore")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # warnings of the framework
    from livekit import rtc
    from livekit.agents import Agent, AgentSession, APIConnectOptions, APIError, tts
    from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT
    from livekit.agents.voice.io import AudioOutput, AudioOutputCapabilities

    from vivace.integrations.livekit import TTS

WORDS = ["Hel", "lo ", "there, ", "this ", "is ", "an ", "agent. ", "It ", "speaks", "."]
TEXT = "".join(WORDS)
ONCE = APIConnectOptions(max_retry=0, timeout=LIMIT_S)
NUM_INTERRUPTIONS = 200


@pytest.fixture(params=WAYS)
def under_test(request: Any, tmp_path: Path) -> Iterator[VoiceUnderTest]:
    with voice_under_test(request.param, tmp_path) as under_test:
        yield under_test


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await asyncio.wait_for(test(), 3 * LIMIT_S)

    asyncio.run(whole())


async def read(stream: Any) -> list[tts.SynthesizedAudio]:
    return [event async for event in stream]


def seconds(events: list[tts.SynthesizedAudio]) -> float:
    return sum(event.frame.duration for event in events)


def test_complete_text_is_spoken(under_test: VoiceUnderTest) -> None:
    async def test() -> None:
        async with TTS(under_test.voice, voice="heart", seed=7) as voice:
            voice.prewarm()
            assert voice.capabilities.streaming
            assert (voice.provider, voice.sample_rate, voice.num_channels) == ("vivace", 24_000, 1)
            frame = await voice.synthesize(TEXT).collect()
            assert frame.duration == pytest.approx(2.0, abs=0.01)
            assert max(abs(sample) for sample in frame.data) > 10_000

    run(test)


def test_tokens_are_spoken_before_the_text_ends(under_test: VoiceUnderTest) -> None:
    async def test() -> None:
        found: list[Any] = []
        async with TTS(under_test.voice) as voice:
            voice.on("metrics_collected", found.append)
            for _ in range(2):
                async with voice.stream() as stream:
                    for word in WORDS[:-1]:
                        stream.push_text(word)
                    first = await asyncio.wait_for(stream.__anext__(), LIMIT_S)
                    stream.push_text(WORDS[-1])
                    stream.end_input()
                    events = [first, *await read(stream)]
                assert seconds(events) == pytest.approx(2.0, abs=0.01)
                assert events[-1].is_final
                assert len({event.segment_id for event in events}) == 1
            await under_test.wait_free()
        assert [m.characters_count for m in found] == [len(TEXT)] * 2
        assert all(0 < m.ttfb < LIMIT_S for m in found)
        assert [round(m.audio_duration, 1) for m in found] == [2.0, 2.0]

    run(test)


def test_closed_stream_frees_its_slot_for_the_next(under_test: VoiceUnderTest) -> None:
    under_test.speak_at_length(0.001)

    async def test() -> None:
        async with TTS(under_test.voice) as voice:
            stream = voice.stream()
            for word in WORDS:
                stream.push_text(word)
            await asyncio.wait_for(stream.__anext__(), LIMIT_S)
            await stream.aclose()
            await under_test.wait_free()
            under_test.speak_briefly()
            frame = await voice.synthesize(TEXT).collect()
            assert frame.duration == pytest.approx(2.0, abs=0.01)

    run(test)


@pytest.mark.parametrize("text", ["", "  "])
def test_stream_without_words_is_silent(under_test: VoiceUnderTest, text: str) -> None:
    async def test() -> None:
        async with TTS(under_test.voice) as voice, voice.stream() as stream:
            stream.push_text(text)
            stream.end_input()
            assert await read(stream) == []

    run(test)


def test_rejected_request_raises_a_non_retryable_error(under_test: VoiceUnderTest) -> None:
    async def test() -> None:
        found: list[Any] = []
        async with TTS(under_test.voice, voice="nobody") as voice:
            voice.on("error", found.append)
            with pytest.raises(APIError, match="no voice named 'nobody'"):
                await voice.synthesize(TEXT).collect()
            voice.update_options(voice="heart")
            assert (await voice.synthesize(TEXT).collect()).duration > 1.9
        assert [error.recoverable for error in found] == [False]

    run(test)


def test_text_above_the_limit_raises_an_error(under_test: VoiceUnderTest) -> None:
    async def test() -> None:
        async with TTS(under_test.voice, max_text_chars=200) as voice, voice.stream() as stream:
            for _ in range(100):
                stream.push_text("and on ")
            with pytest.raises(APIError, match="the limit is 200"):
                await read(stream)
            await under_test.wait_free()

    run(test)


def test_interruptions_at_random_times_free_all_slots(
    under_test: VoiceUnderTest, record_property: Callable[[str, object], None]
) -> None:
    record_property("interruptions", NUM_INTERRUPTIONS)
    under_test.speak_at_length(0.0005)
    chance = random.Random(15)

    async def test() -> None:
        async with TTS(under_test.voice) as voice:
            for _ in range(NUM_INTERRUPTIONS):
                words = WORDS[: chance.randrange(len(WORDS) + 1)]
                stream = voice.stream()
                for word in words:
                    stream.push_text(word)
                if chance.random() < 0.3:
                    stream.end_input()
                if len(words) >= 4 and chance.random() < 0.5:
                    for _ in range(chance.randrange(1, 5)):
                        await asyncio.wait_for(stream.__anext__(), LIMIT_S)
                else:
                    await asyncio.sleep(chance.random() / 50)
                await stream.aclose()
            await under_test.wait_free()
            under_test.speak_briefly()
            assert (await voice.synthesize(TEXT).collect()).duration > 1.9

    run(test)


# -- an agent session ------------------------------------------------------------------------


class Loudspeaker(AudioOutput):  # type: ignore[misc]
    """Accepts frames without delay. A segment counts as played when it is flushed or cleared."""

    def __init__(self) -> None:
        super().__init__(label="test", capabilities=AudioOutputCapabilities(pause=False))
        self.played_s = self.segment = 0.0
        self.news = asyncio.Event()

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        if not self.segment:
            self.on_playback_started(created_at=0.0)
        self.segment += frame.duration
        self.played_s += frame.duration
        self.news.set()

    def flush(self) -> None:
        super().flush()
        self._end(interrupted=False)

    def clear_buffer(self) -> None:
        self._end(interrupted=True)

    def _end(self, *, interrupted: bool) -> None:
        if self.segment:
            self.on_playback_finished(playback_position=self.segment, interrupted=interrupted)
            self.segment = 0.0


@asynccontextmanager
async def session(voice: TTS) -> AsyncIterator[tuple[AgentSession, Loudspeaker]]:
    session: AgentSession = AgentSession(tts=voice)
    session.output.audio = loudspeaker = Loudspeaker()
    await session.start(Agent(instructions="Say what you are told."))
    try:
        yield session, loudspeaker
    finally:
        await session.aclose()


async def tokens() -> AsyncIterator[str]:
    for word in WORDS:
        await asyncio.sleep(0)
        yield word


def test_agent_speaks_tokens_and_is_interrupted(under_test: VoiceUnderTest) -> None:
    async def test() -> None:
        async with TTS(under_test.voice) as voice, session(voice) as (agent, loudspeaker):
            await asyncio.wait_for(agent.say(tokens()), LIMIT_S)
            assert loudspeaker.played_s == pytest.approx(2.0, abs=0.02)
            await under_test.wait_free()

            under_test.speak_at_length(0.001)
            loudspeaker.played_s = 0.0
            loudspeaker.news.clear()
            handle = agent.say(tokens())
            await asyncio.wait_for(loudspeaker.news.wait(), LIMIT_S)
            handle.interrupt()
            await asyncio.wait_for(handle, LIMIT_S)
            assert handle.interrupted
            await under_test.wait_free()
            assert loudspeaker.played_s < 5_000 * 0.08

            under_test.speak_briefly()
            loudspeaker.played_s = 0.0
            await asyncio.wait_for(agent.say(TEXT), LIMIT_S)
            assert loudspeaker.played_s == pytest.approx(2.0, abs=0.02)

    run(test)


@pytest.mark.parametrize("way", WAYS)
def test_words_arrive_with_their_audio(way: str, tmp_path: Path) -> None:
    async def test() -> None:
        with speaking(way, tmp_path) as source:
            async with TTS(source, timings=True, seed=7) as voice:
                assert voice.capabilities.aligned_transcript
                async with voice.stream() as stream:
                    for word in WORDS:
                        stream.push_text(word)
                    stream.end_input()
                    events = await read(stream)
        words = [w for e in events for w in e.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, [])]
        assert "".join(words) == TEXT
        starts = [word.start_time for word in words]
        assert starts == sorted(starts)
        assert 0.3 < words[-1].end_time <= seconds(events) + 0.1

    run(test)


def test_lost_server_raises_a_connection_error(tmp_path: Path) -> None:
    async def test() -> None:
        with voice_under_test("over a socket", tmp_path, drain_timeout_s=0.1) as under_test:
            under_test.speak_at_length(0.001)
            async with TTS(under_test.voice) as voice, voice.stream(conn_options=ONCE) as stream:
                stream.push_text(TEXT)
                stream.end_input()
                await asyncio.wait_for(stream.__anext__(), LIMIT_S)
                assert under_test.server is not None
                under_test.server.loop.call_soon_threadsafe(under_test.server.server.stop)
                with pytest.raises(APIError):
                    await asyncio.wait_for(read(stream), LIMIT_S)

    run(test)


def test_missing_server_raises_a_connection_error_with_a_hint() -> None:
    async def test() -> None:
        async with TTS("http://127.0.0.1:9") as voice:
            voice.prewarm()
            with pytest.raises(APIError, match="is `vivace serve` running there"):
                await voice.synthesize(TEXT, conn_options=ONCE).collect()

    run(test)
