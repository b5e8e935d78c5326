"""Kokoro-FastAPI's endpoint: JSON lines of base64 audio and word times."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.serving import Running, running
from vivace import TTS
from vivace.serve.settings import ServeSettings

PATH, SPEECH = "/dev/captioned_speech", "/v1/audio/speech"
TEXT = "Good evening, Dr. Lee."
BODY = {"model": "kokoro", "input": TEXT, "voice": "af_heart", "seed": 7, "response_format": "pcm"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    voices = tmp_path_factory.mktemp("voices")
    with running(ServeSettings(port=0, voices=voices, device="cpu")) as server:
        yield server


def lines(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    return [json.loads(line) for line in answer.text.splitlines()]


def joined(objects: list[dict[str, Any]]) -> bytes:
    return b"".join(base64.b64decode(each["audio"]) for each in objects)


def timestamps(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for each in objects for row in each["timestamps"]]


def test_stream_is_json_lines_of_audio_and_words(server: Running, client: httpx.Client) -> None:
    objects = lines(client.post(PATH, json=BODY))
    assert len(objects) > 1
    assert all(each.keys() == {"audio", "audio_format", "timestamps"} for each in objects)
    assert {each["audio_format"] for each in objects} == {"audio/pcm"}
    plain = client.post(SPEECH, json={**BODY, "voice": "heart"})
    assert joined(objects) == plain.content
    rows = timestamps(objects)
    assert [row["word"] for row in rows] == TEXT.split()
    assert all(row.keys() == {"word", "start_time", "end_time"} for row in rows)
    times = [time for row in rows for time in (row["start_time"], row["end_time"])]
    assert times == sorted(times)
    assert 0 <= times[0] < times[-1] <= len(plain.content) / 48_000


@pytest.mark.ci
def test_words_equal_those_of_the_python_api(server: Running, client: httpx.Client) -> None:
    (model,) = server.context.models.loaded()
    tts: TTS = model.tts
    expected = [
        word
        for chunk in tts.stream(TEXT, seed=7, timings=True, voice="heart")
        for word in chunk.words or ()
    ]
    rows = timestamps(lines(client.post(PATH, json=BODY)))
    assert [row["start_time"] for row in rows] == pytest.approx(
        [w.start_s for w in expected], abs=0.012
    )
    assert [row["end_time"] for row in rows] == pytest.approx(
        [w.end_s for w in expected], abs=0.012
    )


def test_whole_speech_is_one_object(client: httpx.Client) -> None:
    body = {**BODY, "stream": False, "response_format": "wav"}
    (found,) = lines(client.post(PATH, json=body))
    assert found["audio_format"] == "audio/wav"
    assert base64.b64decode(found["audio"]).startswith(b"RIFF")
    assert [row["word"] for row in found["timestamps"]] == TEXT.split()


def test_default_format_is_mp3(client: httpx.Client) -> None:
    objects = lines(client.post(PATH, json={"input": "Yes."}))
    assert {each["audio_format"] for each in objects} == {"audio/mpeg"}


@pytest.mark.parametrize(("stream", "expected"), [(True, []), (False, None)])
def test_return_timestamps_false_sends_audio_only(
    client: httpx.Client, stream: bool, expected: list[Any] | None
) -> None:
    body = {**BODY, "return_timestamps": False, "stream": stream}
    objects = lines(client.post(PATH, json=body))
    assert all(each["timestamps"] == expected for each in objects)
    assert joined(objects)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"return_timestamps": "yes"}, "return_timestamps"),
        ({"return_timestamps": 1}, "return_timestamps"),
        ({"lang_code": 5}, "lang_code"),
        ({"lang_code": "h"}, "lang_code"),
        ({"lang_code": "z"}, "lang_code"),
        ({"voice": "nobody"}, "voice"),
        ({"voice": ""}, "voice"),
        ({"input": ""}, "input"),
        ({"speed": 9}, "speed"),
        ({"response_format": "m4a"}, "response_format"),
    ],
)
def test_invalid_field_returns_400_that_names_it(
    client: httpx.Client, fields: dict[str, Any], param: str
) -> None:
    answer = client.post(PATH, json={**BODY, **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize("code", ["a", "b", "A", "en-us"])
def test_english_lang_codes_are_accepted(client: httpx.Client, code: str) -> None:
    assert joined(lines(client.post(PATH, json={**BODY, "input": "Yes.", "lang_code": code})))


@pytest.mark.parametrize(
    ("fields", "ignored"),
    [
        ({"volume_multiplier": 1.0, "normalization_options": {}}, None),
        ({"return_download_link": False, "download_format": None}, None),
        ({"volume_multiplier": 2.0}, "volume_multiplier"),
        ({"normalization_options": {"normalize": False}}, "normalization_options"),
        ({"volume_multiplier": 0, "download_format": "wav"}, "volume_multiplier, download_format"),
    ],
)
def test_unsupported_fields_are_named_in_a_header(
    client: httpx.Client, fields: dict[str, Any], ignored: str | None
) -> None:
    answer = client.post(PATH, json={**BODY, "input": "Yes.", **fields})
    assert answer.headers.get("x-vivace-ignored") == ignored


@pytest.mark.default_cases(1)
@pytest.mark.parametrize(
    ("name", "voice"),
    [
        ("af_heart", "heart"),
        ("am_michael", "michael"),
        ("af_bella", "heart"),
        ("bm_george", "michael"),
        ("af_bella(2)+af_sky", "heart"),
    ],
)
def test_kokoro_voice_names_select_the_voice_or_its_gender(
    client: httpx.Client, name: str, voice: str
) -> None:
    spoken = [
        client.post(SPEECH, json={**BODY, "input": "Yes.", "voice": each}).content
        for each in (name, voice)
    ]
    assert spoken[0] == spoken[1]
