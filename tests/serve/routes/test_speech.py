"""`POST /v1/audio/speech`: every format, streamed, whole and as events."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import threading
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import av
import httpx
import numpy as np
import pytest

from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from vivace.audio.files import read_audio
from vivace.serve.settings import ServeSettings
from vivace.serve.streams.encoders import SpeechEncoder

FORMATS = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm;rate=24000",
}
NUM_FRAMES = 25
NUM_SAMPLES = NUM_FRAMES * 1_920


@pytest.fixture(scope="module")
def backend() -> ScriptedSpeech:
    return ScriptedSpeech(default=Plan(NUM_FRAMES))


@pytest.fixture(scope="module")
def server(backend: ScriptedSpeech, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    voices: Path = tmp_path_factory.mktemp("voices")
    with running(ServeSettings(port=0, voices=voices), backend.load) as server:
        yield server


def ask(client: httpx.Client, **fields: Any) -> httpx.Response:
    return client.post("/v1/audio/speech", json={"model": "tts-1", "input": "Hello.", **fields})


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """Parse events like LiveKit: lines that begin with `data: `."""
    lines = response.text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]


def audio_of(sent: list[dict[str, Any]]) -> bytes:
    deltas = [event for event in sent if event["type"] == "speech.audio.delta"]
    return b"".join(base64.b64decode(event["audio"]) for event in deltas)


def decode(format: str, content: bytes, rate: int = 24_000) -> np.ndarray:
    if format == "pcm":
        return np.frombuffer(content, "<i2").astype(np.float32) / 32_768
    if format != "aac":
        recording = read_audio(content, trusted=True)
        assert recording.sample_rate == rate
        return recording.samples
    with av.open(io.BytesIO(content)) as container:
        return np.concatenate([f.to_ndarray().reshape(-1) for f in container.decode(audio=0)])


def check_tone(format: str, content: bytes, rate: int = 24_000) -> None:
    samples = decode(format, content, rate)
    seconds = NUM_SAMPLES / 24_000
    assert len(samples) / rate == pytest.approx(seconds, abs=0.1)
    middle = samples[rate // 4 : -rate // 4]
    spectrum = np.abs(np.fft.rfft(middle))
    assert np.argmax(spectrum) * rate / len(middle) == pytest.approx(440, abs=5)


# -- formats --------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_stream_has_the_content_type_of_its_format(client: httpx.Client, format: str) -> None:
    response = ask(client, response_format=format)
    assert response.status_code == 200
    assert response.headers["content-type"] == FORMATS[format]
    assert response.headers["transfer-encoding"] == "chunked"
    assert response.headers["x-request-id"]
    check_tone(format, response.content)


def test_default_response_is_unbuffered_mp3(client: httpx.Client) -> None:
    response = ask(client)
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["content-type"] == "audio/mpeg"
    assert response.headers["transfer-encoding"] == "chunked"


@pytest.mark.parametrize("format", FORMATS)
def test_whole_response_has_content_length_and_header_sizes(
    client: httpx.Client, format: str
) -> None:
    response = ask(client, response_format=format, stream=False)
    assert response.headers["content-type"] == FORMATS[format]
    assert int(response.headers["content-length"]) == len(response.content)
    assert "transfer-encoding" not in response.headers
    check_tone(format, response.content)


@pytest.mark.parametrize(
    ("format", "stream"), [*((format, None) for format in FORMATS), ("wav", True), ("wav", False)]
)
def test_events_support_every_format(
    client: httpx.Client, format: str, stream: bool | None
) -> None:
    response = ask(client, response_format=format, stream_format="sse", stream=stream)
    assert response.headers["content-type"].startswith("text/event-stream")
    sent = events(response)
    assert [event["type"] for event in sent[-2:]] == ["speech.audio.delta", "speech.audio.done"]
    check_tone(format, audio_of(sent))
    usage = sent[-1]["usage"]
    assert usage["output_tokens"] == NUM_FRAMES
    assert usage["total_tokens"] == usage["input_tokens"] + NUM_FRAMES
    assert usage["input_tokens"] > 0
    assert usage["audible_ms"] > 0


def test_event_names_its_type_in_event_and_data(client: httpx.Client) -> None:
    text = ask(client, response_format="pcm", stream_format="sse").text
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"


@pytest.mark.parametrize("stream", [True, None])
def test_stream_never_overrides_stream_format(client: httpx.Client, stream: bool | None) -> None:
    kinds = {
        stream_format: ask(client, stream_format=stream_format, stream=stream).headers[
            "content-type"
        ]
        for stream_format in ("audio", "sse")
    }
    assert kinds["audio"] == "audio/mpeg"
    assert kinds["sse"].startswith("text/event-stream")
    assert ask(client, stream=stream).headers["content-type"] == "audio/mpeg"


def test_streamed_wav_is_readable_without_a_length(client: httpx.Client) -> None:
    content = ask(client, response_format="wav").content
    assert content[4:8] == content[40:44] == b"\xff\xff\xff\xff"
    with wave.open(io.BytesIO(content)) as file:
        assert len(file.readframes(NUM_SAMPLES * 2)) == NUM_SAMPLES * 2


def test_whole_wav_header_has_its_length(client: httpx.Client) -> None:
    content = ask(client, response_format="wav", stream=False).content
    assert int.from_bytes(content[4:8], "little") == len(content) - 8
    with wave.open(io.BytesIO(content)) as file:
        assert file.getnframes() == NUM_SAMPLES


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("format", "rate"), [("pcm", 16_000), ("wav", 8_000), ("mp3", 44_100)])
def test_sample_rate_field_resamples_the_audio(
    client: httpx.Client, format: str, rate: int, stream: bool
) -> None:
    response = ask(client, response_format=format, sample_rate=rate, stream=stream)
    check_tone(format, response.content, rate)
    if format == "pcm":
        assert response.headers["content-type"] == f"audio/pcm;rate={rate}"


def test_speed_shortens_the_speech(client: httpx.Client) -> None:
    fast = ask(client, response_format="pcm", speed=2).content
    assert len(fast) == pytest.approx(NUM_SAMPLES, rel=0.01)  # two bytes per sample


# -- while it is made -----------------------------------------------------------------------------


def made_before_a_tenth(
    client: httpx.Client, backend: ScriptedSpeech, **fields: Any
) -> tuple[int, int]:
    """Frames made when a tenth of the bytes had arrived, and all frames.

    The speech stops half-way until then, or for a while.
    """
    backend.plans[5] = Plan(120)
    body = {"input": "Hello.", "seed": 5, **fields}
    num_bytes = len(client.post("/v1/audio/speech", json=body).content)
    backend.pause_at, total, num_made = 60, 0, 0
    try:
        with client.stream("POST", "/v1/audio/speech", json=body) as response:
            for part in response.iter_raw():
                total += len(part)
                if total >= num_bytes / 10 and not num_made:
                    num_made = backend.num_made or 120
                    backend.is_over.set()
    finally:
        backend.pause_at = None
        backend.is_over.clear()
    assert total == pytest.approx(num_bytes, abs=40)  # the last event counts milliseconds
    return num_made, 120


@pytest.mark.parametrize(
    ("format", "stream_format"), [*((format, "audio") for format in FORMATS), ("mp3", "sse")]
)
def test_stream_is_sent_while_it_is_made(
    client: httpx.Client, backend: ScriptedSpeech, format: str, stream_format: str
) -> None:
    num_made, num_frames = made_before_a_tenth(
        client, backend, response_format=format, stream_format=stream_format
    )
    assert num_made < 0.7 * num_frames


def test_whole_response_is_sent_after_the_last_frame(
    client: httpx.Client, backend: ScriptedSpeech
) -> None:
    backend.pause_s = 0.3
    num_made, num_frames = made_before_a_tenth(client, backend, stream=False)
    backend.pause_s = 30.0
    assert num_made == num_frames  # control of the test above


# -- fields ---------------------------------------------------------------------------------------


def test_null_is_the_default_and_unknown_fields_are_ignored(client: httpx.Client) -> None:
    names = ["voice", "speaker", "instructions", "response_format", "speed", "stream_format"]
    names += ["stream", "language", "seed", "temperature", "ref_audio", "sample_rate", "model"]
    response = ask(client, **dict.fromkeys(names), lang_code="a", normalization_options={"x": [1]})
    assert response.status_code == 200
    assert response.headers["content-type"] == "audio/mpeg"


@pytest.mark.parametrize(
    "named",
    [
        {"voice": "heart"},
        {"voice": "Heart"},
        {"voice": {"id": "heart"}},
        {"speaker": "heart"},
        {"voice": "alloy"},
        {"voice": "vivian"},
        {"voice": None, "speaker": "nova"},
        {},
    ],
)
def test_every_voice_alias_is_accepted(client: httpx.Client, named: dict[str, Any]) -> None:
    assert ask(client, **named).status_code == 200


@pytest.mark.parametrize(
    "language", ["English", "english", "en", "EN", "en-US", "auto", "Auto", ""]
)
def test_every_language_alias_is_accepted(client: httpx.Client, language: str) -> None:
    assert ask(client, language=language).status_code == 200


def test_unsupported_instructions_are_named_in_a_header(client: httpx.Client) -> None:
    response = ask(client, instructions="Cheerfully.")
    assert response.status_code == 200
    assert response.headers["x-vivace-ignored"] == "instructions"
    assert "x-vivace-ignored" not in ask(client).headers


@pytest.mark.parametrize("is_streamed", [True, False])
def test_unsupported_characters_are_skipped_and_named_in_a_header(
    client: httpx.Client, is_streamed: bool
) -> None:
    response = ask(client, input="The name is Мама, they say.", stream=is_streamed)
    assert response.status_code == 200
    num_chars, _, names = response.headers["x-vivace-skipped"].partition("; ")
    assert (num_chars, unquote(names)) == ("4", "Мам")
    assert "x-vivace-skipped" not in ask(client).headers


@pytest.mark.parametrize("is_streamed", [True, False])
def test_event_usage_lists_letters_that_the_checkpoint_does_not_read(
    client: httpx.Client, is_streamed: bool
) -> None:
    text = "The name is Мама, they say."
    response = ask(client, input=text, stream=is_streamed, stream_format="sse")
    done = json.loads(response.text.rpartition("data: ")[2])
    assert done["usage"]["skipped"] == ["Мама"]


def test_skipped_header_names_a_bounded_number_of_characters(client: httpx.Client) -> None:
    letters = "".join(map(chr, range(0x430, 0x450))) + "".join(map(chr, range(0x3400, 0x3460)))
    header = ask(client, input=f"Hello, {letters}.").headers["x-vivace-skipped"]
    num_chars, _, names = header.partition("; ")
    assert (num_chars, len(unquote(names))) == (str(len(letters)), 32)


def test_on_unsupported_error_returns_400(client: httpx.Client) -> None:
    response = ask(client, input="The name is Мама.", on_unsupported="error")
    assert response.status_code == 400
    assert "the letter 'М'" in response.json()["error"]["message"]
    assert ask(client, input="Мама").status_code == 400
    assert ask(client, on_unsupported="maybe").status_code in (400, 422)


def test_text_longer_than_4096_characters_is_accepted(client: httpx.Client) -> None:
    text = "A word or two. " * 1_000
    for length in (4_096, 10_000):
        body = {"input": text[:length], "response_format": "pcm", "max_new_tokens": 3}
        assert client.post("/v1/audio/speech", json=body).status_code == 200


def test_seed_gives_the_same_bytes_streamed_and_whole(client: httpx.Client) -> None:
    streamed = ask(client, seed=7, response_format="pcm").content
    assert streamed == ask(client, seed=7, response_format="pcm", stream=False).content


def test_max_new_tokens_limits_frames(client: httpx.Client) -> None:
    content = ask(client, max_new_tokens=4, response_format="pcm").content
    assert len(content) == 4 * 1_920 * 2


@pytest.mark.parametrize(("format", "is_beside"), [("mp3", True), ("opus", True), ("pcm", False)])
def test_compressed_formats_are_encoded_in_threads(
    format: str, is_beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set()
    encode = SpeechEncoder._encode

    def spy(encoder: SpeechEncoder, samples: Any) -> bytes:
        threads.add(threading.current_thread())
        return encode(encoder, samples)

    monkeypatch.setattr(SpeechEncoder, "_encode", spy)
    encoder = SpeechEncoder(ThreadPoolExecutor(1), format, 24_000)
    asyncio.run(encoder.encode(np.zeros(1_920, np.float32)))
    assert (threading.current_thread() not in threads) == is_beside
