"""Error responses: the field that they name and the reason phrase."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.raw_http import talk
from tests.support.scripted_tts import ScriptedSpeech
from tests.support.serving import Running, running
from vivace.serve.settings import ServeSettings

LIMIT_S = 60.0
SPEECH = {"input": "Hello.", "voice": "alloy", "response_format": "pcm"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = ServeSettings(port=0, voices=tmp_path_factory.mktemp("voices"))
    with running(settings, ScriptedSpeech().load) as opened:
        yield opened


def speak(url: str, **fields: object) -> httpx.Response:
    return httpx.post(f"{url}/v1/audio/speech", json=SPEECH | fields, timeout=LIMIT_S)


@pytest.mark.parametrize("text", ["!!!", "[pause 99s] Hello.", "Привет.", "Hi" * 40_000])
def test_unspeakable_text_error_names_the_input(server: Running, text: str) -> None:
    answer = speak(server.url, input=text)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")


def test_unknown_voice_error_names_the_voice(server: Running) -> None:
    error = speak(server.url, voice="nobody-of-that-name").json()["error"]
    assert error["param"] == "voice"


def test_error_of_the_protocol_has_a_reason_phrase(server: Running, tmp_path: Path) -> None:
    assert talk(server.port, b"no HTTP at all\r\n\r\n").startswith(b"HTTP/1.1 400 Bad Request\r\n")
    settings = ServeSettings(port=0, voices=tmp_path, header_timeout_s=0.1)
    with running(settings, ScriptedSpeech().load) as hasty:
        assert talk(hasty.port, b"GET / HTTP/1.1\r\n").startswith(b"HTTP/1.1 408 Request Timeout")
