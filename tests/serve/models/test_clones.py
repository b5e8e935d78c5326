"""Requests with their own voice: a recording, a speaker embedding or a description."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.support.serving import Running, running
from tests.support.websocket_client import connected
from vivace import TTS
from vivace.audio.clip import encode
from vivace.serve.settings import ModelSpec, ServeSettings
from vivace.voices.voice import MAX_SPEAKER_VALUE

PATH = "/v1/audio/speech"
RATE = 24_000


def recording(format: str = "wav", seconds: float = 2.0, level: float = 0.3, seed: int = 0) -> str:
    """Noise, as a data URI or as base64."""
    samples = np.random.default_rng(seed).normal(0, level, int(seconds * RATE)).astype(np.float32)
    return base64.b64encode(encode(samples, RATE, format)).decode()


@pytest.fixture(scope="module")
def server(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    names = ("base", "voice_design", "custom_voice")
    models = tuple(ModelSpec(name, str(tiny_folder / name)) for name in names)
    voices: Path = tmp_path_factory.mktemp("voices")
    with running(ServeSettings(models=models, port=0, voices=voices)) as server:
        yield server


@pytest.fixture
def cloned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str | None]]:
    """The arguments of `TTS.clone`: the recording and its transcript."""
    calls: list[tuple[int, str | None]] = []
    clone = TTS.clone

    def spy(tts: TTS, audio: Any, transcript: str | None = None, **options: Any) -> Any:
        calls.append((len(audio), transcript))
        return clone(tts, audio, transcript, **options)

    monkeypatch.setattr(TTS, "clone", spy)
    return calls


def ask(client: httpx.Client, **fields: Any) -> httpx.Response:
    body = {"input": "Hello.", "response_format": "pcm", "seed": 3, "max_new_tokens": 4}
    return client.post(PATH, json=body | fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"ref_audio": recording()},
        {"ref_audio": "data:audio/wav;base64," + recording()},
        {"ref_audio": recording("flac")},
        {"ref_audio": recording("mp3")},
        {"ref_audio": recording(), "ref_text": "What is said there."},
        {"ref_audio": recording(), "task_type": "Base", "voice": "nobody"},
        {"model": "base", "ref_audio": recording()},
        {"speaker_embedding": [0.1] * 32},
    ],
)
def test_request_with_its_own_voice_is_spoken(client: httpx.Client, fields: dict[str, Any]) -> None:
    response = ask(client, **fields)
    assert response.status_code == 200, response.text
    assert len(response.content) > 0


def test_different_embeddings_give_different_audio(client: httpx.Client) -> None:
    first = ask(client, speaker_embedding=[1.0] * 32).content
    assert first == ask(client, speaker_embedding=[1.0] * 32).content
    assert first != ask(client, speaker_embedding=[-1.0] * 32).content


@pytest.mark.parametrize("sign", [1, -1])
def test_speaker_embedding_at_its_bounds_is_spoken_and_beyond_them_400(
    client: httpx.Client, sign: int
) -> None:
    assert ask(client, speaker_embedding=[sign * MAX_SPEAKER_VALUE] * 32).status_code == 200
    for value in (MAX_SPEAKER_VALUE * 1.001, 3e38, 1e39, 1e300):
        answer = ask(client, speaker_embedding=[0.0] * 31 + [sign * value])
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "speaker_embedding"


def test_repeated_recording_is_cloned_once(
    client: httpx.Client, cloned: list[tuple[int, str | None]]
) -> None:
    """Also by concurrent requests."""
    audio = recording(seed=11)
    threads = [
        threading.Thread(target=ask, args=(client,), kwargs={"ref_audio": audio}) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(cloned) == 1
    ask(client, ref_audio=audio, ref_text="Hello.")
    ask(client, ref_audio=audio, ref_text="Hello.", x_vector_only_mode=True)
    assert [words for _, words in cloned] == [None, "Hello."]


def test_recording_sent_over_http_and_socket_is_cloned_once(
    server: Running, client: httpx.Client, cloned: list[tuple[int, str | None]]
) -> None:
    sample = recording(seed=77)
    assert ask(client, ref_audio=sample).status_code == 200
    with connected(server) as talk:
        fields = {"ref_audio": sample, "response_format": "pcm", "seed": 3, "max_new_tokens": 4}
        talk.send("session.config", **fields)
        talk.speak("Hello.")
    assert len(cloned) == 1


@pytest.mark.parametrize(
    "ref_audio",
    [
        recording(level=0.0),  # silent
        recording(seconds=0.2),
        recording(seconds=40),
        base64.b64encode(b"RIFF" + bytes(100)).decode(),
        base64.b64encode(b"no audio at all, only words").decode(),
        base64.b64encode(b"\0" * 1_000_000).decode(),
        "/etc/passwd",
        "not base64!",
    ],
)
def test_recording_that_cannot_be_cloned_returns_400(client: httpx.Client, ref_audio: str) -> None:
    response = ask(client, ref_audio=ref_audio)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_audio"
    assert ask(client, ref_audio=recording()).status_code == 200


@pytest.mark.parametrize("width", [63, 8_000])
def test_embedding_of_wrong_width_returns_400(client: httpx.Client, width: int) -> None:
    response = ask(client, speaker_embedding=[0.1] * width)
    assert response.status_code == 400
    assert str(width) in response.json()["error"]["message"].replace(",", "")


def test_instructions_design_the_voice(client: httpx.Client) -> None:
    design = {"model": "voice_design", "voice": None, "task_type": "VoiceDesign"}
    one = ask(client, **design, instructions="An old man, hoarse and slow.")
    other = ask(client, **design, instructions="A cheerful young woman.")
    assert one.status_code == other.status_code == 200
    assert "x-vivace-ignored" not in one.headers
    assert one.content != other.content


def test_wrong_model_type_error_names_the_needed_type(client: httpx.Client) -> None:
    response = ask(client, model="custom_voice", ref_audio=recording())
    assert response.status_code == 400
    assert "custom_voice" in response.json()["error"]["message"]
    assert response.json()["error"]["param"] == "ref_audio"
