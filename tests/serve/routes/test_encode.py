"""`POST /v1/audio/encode`: formats, and bodies that are refused."""

from __future__ import annotations

import io
import wave

import httpx
import numpy as np
import pytest

PATH = "/v1/audio/encode"
SAMPLES = (8_000 * np.sin(np.arange(24_000) / 10)).astype("<i2").tobytes()  # a second


@pytest.mark.parametrize(
    ("response_format", "start"),
    [("mp3", (b"\xff", b"ID3")), ("flac", b"fLaC"), ("opus", b"OggS"), ("wav", b"RIFF")],
)
def test_samples_are_encoded(client: httpx.Client, response_format: str, start: bytes) -> None:
    answer = client.post(PATH, params={"response_format": response_format}, content=SAMPLES)
    assert answer.status_code == 200
    assert answer.content.startswith(start)


def test_wav_has_the_same_samples_and_rate(client: httpx.Client) -> None:
    query = {"response_format": "wav", "sample_rate": "16000"}
    with wave.open(io.BytesIO(client.post(PATH, params=query, content=SAMPLES).content)) as file:
        assert file.getframerate() == 16_000
        assert file.readframes(file.getnframes()) == SAMPLES


@pytest.mark.parametrize(
    ("query", "content", "code"),
    [
        ({}, b"", "invalid_audio"),
        ({}, b"odd", "invalid_audio"),
        ({"response_format": "mp4"}, SAMPLES, "invalid_request"),
        ({"sample_rate": 7_000}, SAMPLES, "invalid_request"),
        ({"response_format": "opus", "sample_rate": 44_100}, SAMPLES, "unsupported_format"),
    ],
)
def test_invalid_request_is_refused(
    client: httpx.Client, query: dict[str, str], content: bytes, code: str
) -> None:
    answer = client.post(PATH, params=query, content=content)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
