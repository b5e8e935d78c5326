"""Invalid speech requests return a 4xx at once, and the next request is served."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.scripted_tts import ScriptedSpeech
from tests.support.serving import Running, running
from vivace.options import StreamOptions
from vivace.serve.errors import RefusedError
from vivace.serve.input.strict_json import parse_object
from vivace.serve.settings import ServeSettings
from vivace.serve.speaking.request import SpeechRequest
from vivace.speech import language_name

PATH = "/v1/audio/speech"
MIB = 2**20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    voices: Path = tmp_path_factory.mktemp("voices")
    with running(ServeSettings(port=0, voices=voices), ScriptedSpeech().load) as server:
        yield server


def check_refused(response: httpx.Response) -> dict[str, Any]:
    assert 400 <= response.status_code < 500, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


def check_serves(client: httpx.Client) -> None:
    assert client.post(PATH, json={"input": "Hello."}).status_code == 200


# -- fields ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": " \n\t "}, "input"),
        ({"input": "!!! ... ???"}, "input"),
        ({"input": "a\0b"}, "input"),
        ({"input": 7}, "input"),
        ({"input": ["Hello."]}, "input"),
        ({"input": True}, "input"),
        ({"input": None}, "input"),
        ({"input": "x" * 100_000}, "input"),
        ({"input": "\u05e9\u05dc\u05d5\u05dd"}, "input"),
        ({"voice": "nobody"}, "voice"),
        ({"voice": ""}, "voice"),
        ({"voice": " \t"}, "voice"),
        ({"voice": {"id": ""}}, "voice"),
        ({"voice": "", "speaker": "heart"}, "voice"),
        ({"speaker": ""}, "speaker"),
        ({"voice": "../../etc/passwd"}, "voice"),
        ({"voice": "/etc/passwd"}, "voice"),
        ({"voice": "heart.safetensors"}, "voice"),
        ({"voice": 5}, "voice"),
        ({"voice": ["heart"]}, "voice"),
        ({"voice": {"id": 5}}, "voice"),
        ({"voice": {"name": "heart"}}, "voice"),
        ({"speaker": "nobody"}, "speaker"),
        ({"model": 5}, "model"),
        ({"response_format": "ogg"}, "response_format"),
        ({"response_format": ""}, "response_format"),
        ({"response_format": 3}, "response_format"),
        ({"stream_format": "events"}, "stream_format"),
        ({"stream": "yes"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"speed": 0.2}, "speed"),
        ({"speed": 4.1}, "speed"),
        ({"speed": "1"}, "speed"),
        ({"speed": True}, "speed"),
        ({"speed": 1e300}, "speed"),
        ({"language": "klingon"}, "language"),
        ({"language": "zh"}, "language"),
        ({"language": 5}, "language"),
        ({"instructions": 5}, "instructions"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"seed": "7"}, "seed"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": 10**30}, "max_new_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 1e200}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 2}, "top_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"sample_rate": 7}, "sample_rate"),
        ({"sample_rate": 44_100, "response_format": "opus"}, "sample_rate"),
        ({"task_type": "Base"}, "task_type"),
        ({"task_type": "Nonsense"}, "task_type"),
        ({"ref_audio": "http://localhost/voice.wav"}, "ref_audio"),
        ({"ref_audio": "file:///etc/passwd"}, "ref_audio"),
        ({"ref_audio": "/etc/passwd"}, "ref_audio"),
        ({"ref_audio": "me.wav"}, "ref_audio"),
        ({"ref_audio": "data:audio/wav,plain"}, "ref_audio"),
        ({"ref_audio": base64.b64encode(b"RIFF").decode()}, "ref_audio"),
        ({"ref_audio": 5}, "ref_audio"),
        ({"ref_audio": "A" * (14 * MIB - 200)}, "ref_audio"),
        ({"speaker_embedding": [0.1] * 10_000}, "speaker_embedding"),
        ({"speaker_embedding": ["x"]}, "speaker_embedding"),
        ({"speaker_embedding": [0.1, 0.2]}, "speaker_embedding"),
        ({"x_vector_only_mode": "yes"}, "x_vector_only_mode"),
    ],
)  # fmt: skip
def test_invalid_field_is_named_in_the_error(
    client: httpx.Client, fields: dict[str, Any], param: str | None
) -> None:
    began = time.process_time()  # also of the server, on a busy machine
    error = check_refused(client.post(PATH, json={"input": "Hello.", **fields}))
    assert error["param"] == param
    assert time.process_time() - began < 5
    check_serves(client)


def test_unknown_voice_error_lists_available_voices(client: httpx.Client) -> None:
    error = check_refused(client.post(PATH, json={"input": "Hello.", "voice": "nobody"}))
    assert "heart" in error["message"]


def test_limit_error_states_the_limit_and_the_value(client: httpx.Client) -> None:
    error = check_refused(client.post(PATH, json={"input": "x" * 70_000}))
    assert "70,000" in error["message"]
    assert "65,536" in error["message"]


# -- bodies ---------------------------------------------------------------------------------------

BODIES = {
    "none": b"",
    "no JSON": b"Hello.",
    "cut short": b'{"input": "Hel',
    "a list": b'["Hello."]',
    "a string": b'"Hello."',
    "null": b"null",
    "a lone surrogate": b'{"input": "Hello \\ud800 there."}',
    "a lone surrogate in a voice": b'{"input": "Hello.", "voice": "\\udfff"}',
    "a lone surrogate in an unknown field": b'{"input": "Hello.", "x": {"y": ["\\ud800"]}}',
    "an escaped NUL": b'{"input": "Hello\\u0000there."}',
    "not UTF-8": b'{"input": "Hello \xff"}',
    "UTF-16": '{"input": "Hello."}'.encode("utf-16"),
    "duplicate keys": b'{"input": "Hello.", "input": "Goodbye."}',
    "duplicate keys inside": b'{"input": "Hello.", "x": {"a": 1, "a": 2}}',
    "NaN": b'{"input": "Hello.", "speed": NaN}',
    "Infinity": b'{"input": "Hello.", "speed": -Infinity}',
    "a huge exponent": b'{"input": "Hello.", "speed": 1e999}',
    "a huge number": b'{"input": "Hello.", "seed": ' + b"9" * 100_000 + b"}",
    "deep lists": b'{"input": "Hello.", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"x":' * 100_000 + b"1" + b"}" * 100_000,
    "many values": b'{"input": "Hello.", "x": [' + b"1," * 1_000_000 + b"1]}",
    "many strings": b'{"input": "Hello.", "x": [' + b'"",' * 1_000_000 + b'""]}',
    "many escapes": b'{"input": "' + b"\\u0041" * 1_000_000 + b'"}',
    "10 MB of text": b'{"input": "' + b"x" * 10 * MIB + b'"}',
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_invalid_body_returns_400(client: httpx.Client, body: bytes) -> None:
    began = time.process_time()  # also of the server, on a busy machine
    headers = {"content-type": "application/json"}
    check_refused(client.post(PATH, content=body, headers=headers))
    assert time.process_time() - began < 5
    check_serves(client)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_body_with_a_simple_cors_content_type_is_refused(client: httpx.Client, kind: str) -> None:
    """Browsers send such requests to other origins without a CORS preflight."""
    headers = {"content-type": kind} if kind else {}
    check_refused(client.post(PATH, content=b'{"input": "Hello."}', headers=headers))


def test_unknown_fields_nested_16_deep_are_accepted() -> None:
    assert parse_object('{"a":' * 16 + "1" + "}" * 16)
    with pytest.raises(RefusedError, match="deep"):
        parse_object('{"a":' * 17 + "1" + "}" * 17)


def test_brackets_and_quotes_in_text_do_not_count_as_nesting() -> None:
    text = '[{"' * 60 + "\\"
    assert parse_object(json.dumps({"input": text}))["input"] == text


def test_text_of_quotes_and_escapes_at_the_limit_is_accepted() -> None:
    for char in ('"', "\\", ",", "\U0001f600"):
        assert len(parse_object(json.dumps({"input": char * 65_536}))["input"]) == 65_536


# -- the request's own ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("English", "english"), ("en", "english"), ("en-GB", "english"), ("zh_CN", "chinese"),
        ("Auto", "auto"), ("", "auto"), (" German ", "german"),
        ("beijing_dialect", "beijing_dialect"), ("klingon", "klingon"),
    ],
)  # fmt: skip
def test_language_names_and_codes_are_accepted(given: str, name: str) -> None:
    assert language_name(given) == name


def test_request_schema_has_no_external_reference(client: httpx.Client) -> None:
    body = client.get("/openapi.json").json()["paths"][PATH]["post"]["requestBody"]
    schema = body["content"]["application/json"]["schema"]
    assert schema["required"] == ["input"]
    assert "$ref" not in json.dumps(schema)


def test_request_fields_become_engine_options() -> None:
    body = {
        "input": "Hello.", "speed": 2, "language": "de", "seed": 7, "max_new_tokens": 50,
        "temperature": 0.5, "top_k": 5, "top_p": 0.9, "repetition_penalty": 1.1, "min_p": 3,
        "trim_start": False,
    }  # fmt: skip
    request = SpeechRequest.read(body, ServeSettings())
    assert request.options() == StreamOptions(
        speed=2.0, language="german", seed=7, max_frames=50,
        temperature=0.5, top_k=5, top_p=0.9, repetition_penalty=1.1, trim_start=False,
    )  # fmt: skip
    bare = SpeechRequest.read({"input": "Hello."}, ServeSettings())
    assert bare.options() == StreamOptions()


@pytest.mark.parametrize(
    "prefix", ["", "data:audio/wav;base64,", "DATA:audio/mpeg;codecs=x;base64,"]
)
def test_ref_audio_is_base64_or_a_data_uri(prefix: str) -> None:
    audio = prefix + base64.b64encode(b"sound").decode()
    request = SpeechRequest.read({"input": "Hello.", "ref_audio": audio}, ServeSettings())
    assert request.recording(ServeSettings()) == b"sound"
    assert request.model_type == "base"
