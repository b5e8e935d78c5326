"""The package `openai` against a real server."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import time
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from vivace.audio.files import read_audio
from vivace.serve.settings import ServeSettings

FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")
NUM_SAMPLES = 25 * 1_920
FAILS, LONG = 11, 12


@pytest.fixture(scope="module")
def backend() -> ScriptedSpeech:
    plans = {FAILS: Plan(100, fails_at=50), LONG: Plan(1_000_000)}
    return ScriptedSpeech(plans=plans, max_streams=2, max_queue=0)


@pytest.fixture(scope="module")
def server(backend: ScriptedSpeech, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    voices: Path = tmp_path_factory.mktemp("voices")
    with running(ServeSettings(port=0, voices=voices), backend.load) as server:
        yield server


@pytest.fixture(scope="module")
def package(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def speak(package: openai.OpenAI, **fields: Any) -> bytes:
    asked: dict[str, Any] = {"model": "gpt-4o-mini-tts", "voice": "alloy", "input": "Hello there."}
    return package.audio.speech.create(**asked | fields).content


@pytest.mark.parametrize("format", FORMATS)
def test_package_receives_every_format(package: openai.OpenAI, format: str) -> None:
    content = speak(package, response_format=format)
    if format == "pcm":
        assert len(content) == NUM_SAMPLES * 2
    elif format == "aac":
        assert content[0] == 0xFF
    else:
        assert read_audio(content).duration_s == pytest.approx(2, abs=0.1)


def test_package_sends_defaults_and_all_options(package: openai.OpenAI) -> None:
    assert read_audio(speak(package)).duration_s == pytest.approx(2, abs=0.1)
    content = speak(
        package,
        model="tts-1-hd",
        voice={"id": "heart"},
        instructions="Cheerfully.",
        speed=2.0,
        stream_format="audio",
        response_format="wav",
        extra_body={"seed": 7, "language": "English", "stream": False},
    )
    with wave.open(io.BytesIO(content)) as file:
        assert file.getnframes() == NUM_SAMPLES // 2


def test_package_streams_audio_to_a_file(package: openai.OpenAI, tmp_path: Path) -> None:
    with package.audio.speech.with_streaming_response.create(
        model="tts-1", voice="nova", input="Hello there."
    ) as response:
        response.stream_to_file(tmp_path / "hello.mp3")
    assert read_audio(tmp_path / "hello.mp3").duration_s == pytest.approx(2, abs=0.1)


def test_package_reads_events(package: openai.OpenAI) -> None:
    with package.audio.speech.with_streaming_response.create(
        model="gpt-4o-mini-tts", voice="ash", input="Hello there.", stream_format="sse"
    ) as response:
        lines = list(response.iter_lines())
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    deltas = [base64.b64decode(event["audio"]) for event in events if "audio" in event]
    assert read_audio(b"".join(deltas)).duration_s == pytest.approx(2, abs=0.1)
    assert events[-1]["type"] == "speech.audio.done"


def test_async_package_receives_speech(server: Running) -> None:
    async def check() -> int:
        async with (
            openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client,
            client.audio.speech.with_streaming_response.create(
                model="tts-1", voice="alloy", input="Hello.", response_format="pcm"
            ) as response,
        ):
            return sum([len(part) async for part in response.iter_bytes()])

    assert asyncio.run(check()) == NUM_SAMPLES * 2


@pytest.mark.parametrize("voice", ["nobody", {"id": "voice_1234"}, "../x"])
def test_package_raises_for_a_refused_request(package: openai.OpenAI, voice: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        speak(package, voice=voice)
    assert caught.value.param == "voice"
    assert caught.value.code == "voice_not_found"
    assert caught.value.request_id


@pytest.mark.parametrize("stream_format", ["audio", "sse"])
def test_package_raises_for_an_incomplete_speech(
    package: openai.OpenAI, stream_format: str
) -> None:
    body = {"seed": FAILS}
    with pytest.raises(openai.APIConnectionError):
        speak(package, stream_format=stream_format, extra_body=body, response_format="pcm")


def test_package_retries_a_refused_request(
    package: openai.OpenAI, server: Running, backend: ScriptedSpeech
) -> None:
    """The package follows `retry-after-ms` and `Retry-After`."""

    def count_refused() -> int:
        return (
            server.context.metrics.render()[0]
            .decode()
            .count('route="/v1/audio/speech",status="429"')
        )

    backend.step_s = 0.01
    asked: dict[str, Any] = {"model": "tts-1", "voice": "alloy", "response_format": "pcm"}
    held = package.audio.speech.with_streaming_response
    patient = package.with_options(max_retries=100)
    with ThreadPoolExecutor(1) as threads:
        with (
            held.create(**asked, input="One.", extra_body={"seed": LONG}),
            held.create(**asked, input="Two.", extra_body={"seed": LONG}),
        ):
            third = threads.submit(patient.audio.speech.create, **asked, input="Three.")
            deadline = time.perf_counter() + 60
            while not count_refused():
                assert time.perf_counter() < deadline, "nothing was refused"
                time.sleep(0.01)
        assert len(third.result().content) == NUM_SAMPLES * 2
    backend.step_s = 0.0
