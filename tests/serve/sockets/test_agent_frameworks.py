"""ElevenLabs services of LiveKit and pipecat, connected to the server.

`pip install -e ".[test,integrations-test]"`, then `pytest -m slow` with this file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from vivace.serve.settings import ServeSettings

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # warnings of the frameworks
WORDS = ["Hello ", "there, ", "this ", "is ", "an ", "agent. ", "It ", "speaks. "]
NUM_FRAMES = 25
SECONDS = NUM_FRAMES * 0.08


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = ServeSettings(port=0, voices=tmp_path_factory.mktemp("voices"))
    with running(settings, ScriptedSpeech(default=Plan(NUM_FRAMES)).load) as server:
        yield server


@pytest.fixture(scope="module")
def talking_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The embedded voice, which has word timings."""
    with running(ServeSettings(port=0, voices=tmp_path_factory.mktemp("voices"))) as server:
        yield server


def test_livekit_plugin_streams_speech(server: Running) -> None:
    elevenlabs = pytest.importorskip("livekit.plugins.elevenlabs")
    aiohttp = pytest.importorskip("aiohttp")

    async def speak() -> list[float]:
        seconds = []
        async with aiohttp.ClientSession() as session:
            tts = elevenlabs.TTS(
                voice_id="alloy",
                model="eleven_turbo_v2_5",
                api_key="none",
                base_url=f"{server.url}/v1",
                http_session=session,
            )
            for _ in range(2):  # over one connection
                async with tts.stream() as stream:
                    for word in WORDS:
                        stream.push_text(word)
                    stream.end_input()
                    frames = [event.frame async for event in stream]
                seconds.append(sum(frame.duration for frame in frames))
            await tts.aclose()
        return seconds

    for seconds in asyncio.run(speak()):
        assert seconds >= SECONDS * 0.9


def test_livekit_plugin_aligns_its_transcript(talking_server: Running) -> None:
    elevenlabs = pytest.importorskip("livekit.plugins.elevenlabs")
    aiohttp = pytest.importorskip("aiohttp")
    from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT

    async def speak() -> list[Any]:
        async with aiohttp.ClientSession() as session:
            url = f"{talking_server.url}/v1"
            tts = elevenlabs.TTS(
                voice_id="alloy", api_key="none", base_url=url, http_session=session
            )
            async with tts.stream() as stream:
                for word in WORDS:
                    stream.push_text(word)
                stream.end_input()
                frames = [event.frame async for event in stream]
            await tts.aclose()
        return frames

    frames = asyncio.run(speak())
    words = [word for frame in frames for word in frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, [])]
    assert "".join(words).split() == "".join(WORDS).split()
    starts = [word.start_time for word in words]
    assert starts == sorted(starts)
    assert len(set(starts)) == len(starts)
    assert 1 < starts[-1] < sum(frame.duration for frame in frames)


def test_pipecat_service_streams_speech(server: Running) -> None:
    down, frames = speak_through_pipecat(server.url)
    audio = [frame.audio for frame in down if isinstance(frame, frames.TTSAudioRawFrame)]
    assert len(b"".join(audio)) / 48_000 >= SECONDS
    assert any(isinstance(frame, frames.TTSStoppedFrame) for frame in down)


def test_pipecat_service_gets_the_spoken_words(
    talking_server: Running,
) -> None:
    down, frames = speak_through_pipecat(talking_server.url)
    audio = [frame.audio for frame in down if isinstance(frame, frames.TTSAudioRawFrame)]
    words = [frame for frame in down if isinstance(frame, frames.TTSTextFrame)]
    assert " ".join(frame.text for frame in words).split() == "".join(WORDS).split()
    times = [frame.pts for frame in words]
    assert times == sorted(times)
    assert 1e9 < times[-1] - times[0] < len(b"".join(audio)) / 48_000 * 1e9


def speak_through_pipecat(url: str) -> tuple[list[Any], Any]:
    service = pytest.importorskip("pipecat.services.elevenlabs.tts").ElevenLabsTTSService
    frames = pytest.importorskip("pipecat.frames.frames")
    utils = pytest.importorskip("pipecat.tests.utils")

    async def speak() -> list[Any]:
        tts = service(
            api_key="none",
            url=f"ws{url.removeprefix('http')}",
            sample_rate=24_000,
            settings=service.Settings(voice="alloy"),
        )
        sent = [frames.LLMFullResponseStartFrame(), *map(frames.LLMTextFrame, WORDS)]
        sent += [frames.LLMFullResponseEndFrame(), utils.SleepFrame(sleep=5)]
        down, _ = await utils.run_test(
            tts, frames_to_send=sent, expected_down_frames=None, expected_up_frames=None
        )
        return list(down)

    return asyncio.run(speak()), frames
