"""Errors name the field as the client's own protocol calls it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.scripted_tts import ScriptedSpeech
from tests.support.serving import Running, running
from tests.support.websocket_client import connected
from vivace.serve.settings import ServeSettings

LIMIT_S = 60.0
MAX_CHARS = 500
ELEVENLABS_BODIES: list[tuple[dict[str, Any], str]] = [
    ({}, "text"),
    ({"text": None}, "text"),
    ({"text": 5}, "text"),
    ({"text": ""}, "text"),
    ({"text": " \n"}, "text"),
    ({"text": "!!!"}, "text"),
    ({"text": "[pause 99s] Hello."}, "text"),
    ({"text": "a\x00b"}, "text"),
    ({"text": "Hi " * MAX_CHARS}, "text"),
    ({"text": "Hi.", "model_id": 5}, "model_id"),
    ({"text": "Hi.", "language_code": 5}, "language_code"),
    ({"text": "Hi.", "language_code": "tlh"}, "language_code"),
    ({"text": "Hi.", "seed": "x"}, "seed"),
    ({"text": "Hi.", "seed": -1}, "seed"),
    ({"text": "Hi.", "voice_settings": 1}, "voice_settings"),
    ({"text": "Hi.", "voice_settings": {"speed": "fast"}}, "voice_settings.speed"),
    ({"text": "Hi.", "voice_settings": {"speed": 9}}, "voice_settings.speed"),
]
SPEECH_BODIES: list[tuple[dict[str, Any], str]] = [
    ({"speaker": "nobody"}, "speaker"),
    ({"speaker": ""}, "speaker"),
    ({"voice": "nobody"}, "voice"),
    ({"voice": "nobody", "speaker": "alloy"}, "voice"),
    ({"max_new_tokens": 0}, "max_new_tokens"),
    ({"language": "tlh"}, "language"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("voices")
    settings = ServeSettings(port=0, voices=folder, max_text_chars=MAX_CHARS)
    with running(settings, ScriptedSpeech().load) as opened:
        yield opened


def error_of(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code in (400, 404), answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


@pytest.mark.parametrize("suffix", ["", "/stream", "/with-timestamps", "/stream/with-timestamps"])
def test_elevenlabs_error_names_the_clients_field(server: Running, suffix: str) -> None:
    with httpx.Client(base_url=server.url, timeout=LIMIT_S) as client:
        for body, param in ELEVENLABS_BODIES:
            error = error_of(client.post(f"/v1/text-to-speech/alloy{suffix}", json=body))
            assert error["param"] == param, body
            assert "input is" not in error["message"], body


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("text-to-speech/nobody", "voice_id"),
        ("text-to-speech/alloy?output_format=ulaw_8000", "output_format"),
        ("text-to-speech/alloy?seed=soon", "seed"),
        ("text-to-speech/alloy?language_code=tlh", "language_code"),
    ],
)
def test_elevenlabs_error_names_the_part_of_the_url(server: Running, path: str, param: str) -> None:
    answer = httpx.post(f"{server.url}/v1/{path}", json={"text": "Hi."}, timeout=LIMIT_S)
    assert error_of(answer)["param"] == param


def test_missing_voice_of_elevenlabs_is_named_voice_id(server: Running) -> None:
    answer = httpx.get(f"{server.url}/v1/voices/nobody", timeout=LIMIT_S)
    assert error_of(answer)["param"] == "voice_id"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        *(("/v1/audio/speech", *body) for body in SPEECH_BODIES),
        ("/dev/captioned_speech", {"lang_code": "h"}, "lang_code"),
        ("/dev/captioned_speech", {"language": "tlh"}, "language"),
    ],
)
def test_speech_error_names_the_alias_that_was_sent(
    server: Running, path: str, fields: dict[str, Any], param: str
) -> None:
    body = {"input": "Hi.", **fields}
    answer = httpx.post(f"{server.url}{path}", json=body, timeout=LIMIT_S)
    assert error_of(answer)["param"] == param


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"text": "Hi. ", "voice_settings": {"speed": 9}}, "voice_settings.speed: "),
        ({"text": 5}, "text: "),
        ({"text": "Hi. ", "seed": -1}, "seed"),
    ],
)
def test_elevenlabs_socket_error_begins_with_the_clients_field(
    server: Running, message: dict[str, Any], words: str
) -> None:
    with connected(server, "/v1/text-to-speech/alloy/stream-input") as talk:
        talk.send(**message)
        answer = talk.read()
    assert isinstance(answer, dict)
    assert answer["message"].startswith(words)


@pytest.mark.parametrize("text", ["  ", "!!!", "Hi " * MAX_CHARS])
def test_omni_error_of_the_text_names_text(server: Running, text: str) -> None:
    with connected(server, "/v1/audio/speech/stream") as talk:
        talk.send("session.config", voice="alloy")
        talk.send("input.text", text=text)
        talk.send("input.done")
        answer = talk.until("error")[-1]
    assert isinstance(answer, dict)
    assert answer["param"] == "text"


@pytest.mark.parametrize(
    ("kind", "message", "param"),
    [
        ("session.update", {"session": {"voice": "nobody"}}, "session.voice"),
        (
            "session.update",
            {"session": {"audio": {"output": {"voice": "nobody"}}}},
            "session.audio.output.voice",
        ),
        ("session.update", {"session": {"speed": 9}}, "session.speed"),
        (
            "response.create",
            {"response": {"audio": {"output": {"speed": 9}}, "input": []}},
            "response.audio.output.speed",
        ),
        ("response.create", {"response": {"input": []}}, "response.input"),
    ],
)
def test_realtime_error_names_the_path_of_the_field(
    server: Running, kind: str, message: dict[str, Any], param: str
) -> None:
    with connected(server, "/v1/realtime") as talk:
        talk.until("session.created")
        talk.send(kind, **message)
        answer = talk.read()
    assert isinstance(answer, dict)
    assert answer["error"]["param"] == param
