"""Frameworks for voice agents, in the versions of the extra `integrations-test`.

`pip install -e ".[test,integrations-test]"`, then `pytest -m slow` with this file.
speech-to-speech pins another `openai`, so it is tested where it was installed without its
dependencies: `pip install --no-deps speech-to-speech==1.1.0`.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from threading import Event
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from vivace.audio.files import read_audio
from vivace.serve.settings import ServeSettings

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # warnings of the frameworks
SECONDS = 2.0
NUM_SAMPLES = 25 * 1_920
TEXT = "Hello there."


@pytest.fixture(scope="module")
def backend() -> ScriptedSpeech:
    return ScriptedSpeech()


@pytest.fixture(scope="module")
def server(backend: ScriptedSpeech, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    voices: Path = tmp_path_factory.mktemp("voices")
    with running(ServeSettings(port=0, voices=voices), backend.load) as server:
        yield server


@pytest.fixture
def faulty(backend: ScriptedSpeech) -> Iterator[None]:
    backend.default = Plan(100, fails_at=50)
    yield
    backend.default = Plan()


@pytest.fixture(scope="module")
def base(server: Running) -> str:
    return f"{server.url}/v1"


# -- litellm --------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["mp3", "opus", "flac", "wav"])
@pytest.mark.parametrize("model", ["openai/tts-1", "openai/Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice"])
def test_litellm_receives_speech(base: str, model: str, format: str) -> None:
    litellm = pytest.importorskip("litellm")
    spoken = litellm.speech(
        model=model,
        voice="alloy",
        input=TEXT,
        api_base=base,
        api_key="none",
        response_format=format,
    )
    assert read_audio(spoken.content).duration_s == pytest.approx(SECONDS, abs=0.1)


# -- LiveKit --------------------------------------------------------------------------------------


async def speak_livekit(base: str, text: str = TEXT, **options: Any) -> float:
    plugin = pytest.importorskip("livekit.plugins.openai")
    speaker = plugin.TTS(base_url=base, api_key="none", **options)
    try:
        speaker.prewarm()
        frame = await speaker.synthesize(text).collect()
        return float(frame.duration)
    finally:
        await speaker.aclose()


@pytest.mark.parametrize(
    "options",
    [
        {},  # mp3 in events
        {"model": "tts-1"},  # mp3, raw
        *({"response_format": format} for format in ("opus", "aac", "wav", "pcm")),
        {"voice": "heart", "speed": 1.0, "instructions": "Cheerfully."},
    ],
)
def test_livekit_receives_speech(base: str, options: dict[str, Any]) -> None:
    assert asyncio.run(speak_livekit(base, **options)) == pytest.approx(SECONDS, abs=0.1)


@pytest.mark.parametrize("options", [{}, {"model": "tts-1"}])
def test_livekit_reports_an_incomplete_speech(
    base: str, options: dict[str, Any], faulty: None
) -> None:
    errors = pytest.importorskip("livekit.agents")
    with pytest.raises(errors.APIConnectionError):
        asyncio.run(speak_livekit(base, **options))


def test_livekit_reports_the_reason_of_a_refusal(base: str) -> None:
    errors = pytest.importorskip("livekit.agents")
    with pytest.raises(errors.APIStatusError) as caught:
        asyncio.run(speak_livekit(base, voice="nobody"))
    assert caught.value.status_code == 400


# -- pipecat --------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"speed": 1.0, "instructions": "Cheerfully."}])
def test_pipecat_receives_speech(base: str, settings: dict[str, Any]) -> None:
    module = pytest.importorskip("pipecat.services.openai.tts")
    frames = pytest.importorskip("pipecat.frames.frames")
    utils = pytest.importorskip("pipecat.tests.utils")
    service = module.OpenAITTSService(
        api_key="none",
        base_url=base,
        sample_rate=24_000,
        settings=module.OpenAITTSService.Settings(voice="alloy", **settings),
    )
    down, _ = asyncio.run(
        utils.run_test(service, frames_to_send=[frames.TTSSpeakFrame(TEXT)], start_timeout=30.0)
    )
    spoken = [frame for frame in down if isinstance(frame, frames.TTSAudioRawFrame)]
    assert {frame.sample_rate for frame in spoken} == {24_000}
    assert sum(len(frame.audio) for frame in spoken) >= NUM_SAMPLES * 2  # and silence after it


# -- speech-to-speech -----------------------------------------------------------------------------


def open_handler(base: str, **options: Any) -> Any:
    module = pytest.importorskip("speech_to_speech.TTS.openai_compatible_handler")
    arguments = {"base_url": base, "api_key": "none", **options}
    handler = module.OpenAICompatibleTTSHandler
    return handler(Event(), Queue(), Queue(), setup_args=(Event(),), setup_kwargs=arguments)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stream": True, "language": "English", "instructions": "Cheerfully."},
        {"response_format": "wav"},
        {"response_format": "wav", "speed": 2.0},
        {"task_type": "CustomVoice"},
    ],
)
def test_speech_to_speech_receives_audio(base: str, options: dict[str, Any]) -> None:
    handler = open_handler(base, **options)  # the framework speaks a warm-up text
    messages = pytest.importorskip("speech_to_speech.pipeline.messages")
    blocks = list(handler.process(messages.TTSInput(text=TEXT)))
    assert handler.queue_out.empty()  # where the framework reports failures
    seconds = len(np.concatenate(blocks)) / 16_000
    assert seconds == pytest.approx(SECONDS / options.get("speed", 1.0), abs=0.1)


def test_speech_to_speech_reports_a_failure(
    base: str, backend: ScriptedSpeech, server: Running
) -> None:
    handler = open_handler(base)
    messages = pytest.importorskip("speech_to_speech.pipeline.messages")
    backend.default = Plan(100, fails_at=50)
    try:
        list(handler.process(messages.TTSInput(text=TEXT)))
    finally:
        backend.default = Plan()
    assert "failed" in handler.queue_out.get_nowait().message


def test_speech_to_speech_cancels_by_disconnecting(
    base: str, backend: ScriptedSpeech, server: Running
) -> None:
    handler = open_handler(base)
    messages = pytest.importorskip("speech_to_speech.pipeline.messages")
    backend.default, backend.step_s = Plan(100_000), 0.01
    try:
        spoken = handler.process(messages.TTSInput(text=TEXT))
        assert len(next(spoken))
        handler.stop_event.set()
        assert list(spoken) == []
        deadline = time.perf_counter() + 10
        while backend.active_slots or server.context.streams.num_active:
            assert time.perf_counter() < deadline, "the slot is still held"
            time.sleep(0.01)
    finally:
        backend.default, backend.step_s = Plan(), 0.0


# -- RealtimeTTS ----------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["mp3", "pcm"])
def test_realtimetts_receives_speech(
    base: str, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = ModuleType("pyaudio")  # replaces the playback device
    fake.paInt16, fake.paCustomFormat = 8, 65_536  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyaudio", fake)
    monkeypatch.setenv("OPENAI_BASE_URL", base)
    module = pytest.importorskip("RealtimeTTS.engines.openai_engine")
    engine = module.OpenAIEngine(api_key="none", response_format=format)
    engine.queue = Queue()
    assert engine.synthesize(TEXT)
    content = b"".join(engine.queue.queue)
    if format == "pcm":
        assert len(content) == NUM_SAMPLES * 2
    else:
        assert read_audio(content).duration_s == pytest.approx(SECONDS, abs=0.1)


# -- curl and ffmpeg ------------------------------------------------------------------------------

COMMAND = (
    "curl -sS --fail -N {base}/audio/speech -H 'content-type: application/json' "
    """-d '{{"input": "Hello there.", "response_format": "{format}"}}' """
)


@pytest.mark.parametrize("format", ["mp3", "opus", "aac", "flac", "wav"])
def test_curl_piped_into_ffmpeg_is_decoded(base: str, format: str, tmp_path: Path) -> None:
    ffmpeg = shutil.which("ffmpeg") or pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe()
    if shutil.which("curl") is None:
        pytest.skip("curl is needed")
    output = tmp_path / "hello.wav"
    command = COMMAND.format(base=base, format=format) + f"| {ffmpeg} -v error -i - {output}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert read_audio(output).duration_s == pytest.approx(SECONDS, abs=0.1)


def test_curl_fails_for_an_incomplete_speech(base: str, faulty: None) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is needed")
    command = COMMAND.format(base=base, format="pcm") + "> /dev/null"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 18, done.stderr  # a partial file
