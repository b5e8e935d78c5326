"""Recorded requests of clients that cannot run in the test suite."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted_tts import ScriptedSpeech
from tests.support.serving import Running, running
from vivace.audio.files import read_audio
from vivace.serve.settings import ServeSettings

PATH = "/v1/audio/speech"
REQUESTS: dict[str, tuple[dict[str, str], dict[str, Any], str]] = {
    "Open WebUI": (
        {"authorization": "Bearer none"},
        {"input": "Hello there.", "voice": "alloy", "model": "tts-1"},
        "audio/mpeg",
    ),
    "SillyTavern": (
        {"authorization": "Bearer ", "connection": "close"},
        {
            "input": "Hello there.",
            "response_format": "mp3",
            "voice": "alloy",
            "speed": 1,
            "model": "tts-1",
        },
        "audio/mpeg",
    ),
    "openai, Node": (
        {"authorization": "Bearer none", "accept": "application/octet-stream"},
        {"model": "gpt-4o-mini-tts", "voice": "coral", "input": "Hello there."},
        "audio/mpeg",
    ),
    "RealtimeTTS": (
        {},
        {
            "model": "tts-1",
            "input": "Hello there.",
            "voice": "nova",
            "instructions": None,
            "response_format": "mp3",
        },
        "audio/mpeg",
    ),
    "speech-to-speech": (
        {},
        {
            "model": "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice",
            "input": "Warmup",
            "voice": "aiden",
            "response_format": "pcm",
            "stream_format": "audio",
            "stream": True,
            "language": "English",
            "instructions": "Cheerfully.",
        },
        "audio/pcm;rate=24000",
    ),
    "vLLM-Omni": (
        {},
        {
            "model": "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice",
            "input": "Hello there.",
            "speaker": "vivian",
            "task_type": "CustomVoice",
            "language": "Auto",
            "response_format": "wav",
            "max_new_tokens": 2_048,
            "initial_codec_chunk_frames": 1,
        },
        "audio/wav",
    ),
    "Kokoro-FastAPI": (
        {},
        {
            "model": "kokoro",
            "input": "Hello there.",
            "voice": "alloy",
            "response_format": "mp3",
            "download_format": None,
            "speed": 1.0,
            "stream": True,
            "return_download_link": False,
            "lang_code": "a",
            "volume_multiplier": 1.0,
            "normalization_options": {"normalize": True, "unit_normalization": False},
        },
        "audio/mpeg",
    ),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    voices: Path = tmp_path_factory.mktemp("voices")
    with running(ServeSettings(port=0, voices=voices), ScriptedSpeech().load) as server:
        yield server


def post(port: int, headers: dict[str, str], body: dict[str, Any]) -> tuple[int, str, bytes]:
    """Send with the standard library, which keeps the header `Bearer ` as it is."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with closing(connection):
        all_headers = {"content-type": "application/json", **headers}
        connection.request("POST", PATH, json.dumps(body), all_headers)
        response = connection.getresponse()
        return response.status, response.headers["content-type"], response.read()


@pytest.mark.parametrize("name", REQUESTS)
def test_recorded_request_is_spoken(server: Running, name: str) -> None:
    headers, body, content_type = REQUESTS[name]
    status, kind, content = post(server.port, headers, body)
    assert (status, kind) == (200, content_type)
    if not kind.startswith("audio/pcm"):
        assert read_audio(content).duration_s == pytest.approx(2, abs=0.1)


def test_empty_api_key_counts_as_no_key(tmp_path: Path) -> None:
    settings = ServeSettings(port=0, voices=tmp_path, api_keys=("secret",))
    headers, body, _ = REQUESTS["SillyTavern"]
    with running(settings, ScriptedSpeech().load) as server:
        assert post(server.port, headers, body)[0] == 401
        assert post(server.port, {**headers, "authorization": "Bearer secret"}, body)[0] == 200
