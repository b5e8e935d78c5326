"""Two servers with one voice store: a voice created on one works on the other."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from tests.support.serving import Running, running
from vivace.serve.setting_sources import resolve_settings
from vivace.serve.settings import ModelSpec, ServeSettings

STORE = "memory://served-voices"


def recording() -> bytes:
    noise = np.random.default_rng(1).normal(0, 0.1, 36_000).astype(np.float32)
    wav = io.BytesIO()
    soundfile.write(wav, noise, 24_000, format="WAV")
    return wav.getvalue()


@pytest.fixture(scope="module")
def servers(tiny_folder: Path) -> Iterator[tuple[Running, Running]]:
    specs = {"base": "base", "design": "voice_design"}
    models = tuple(ModelSpec(name, str(tiny_folder / of)) for name, of in specs.items())
    settings = ServeSettings(port=0, models=models, voices=STORE, device="cpu")
    with running(settings) as first, running(settings) as second:
        yield first, second


def speak(server: Running, **fields: Any) -> httpx.Response:
    body = {"input": "Hi.", "response_format": "pcm", "max_new_tokens": 5, **fields}
    return httpx.post(f"{server.url}/v1/audio/speech", json=body, timeout=120)


def ids(server: Running) -> set[str]:
    listed = httpx.get(f"{server.url}/v1/audio/voices", timeout=120).json()["voices"]
    return {voice["id"] for voice in listed}


def test_voice_store_url_is_kept_by_flag_variable_and_file() -> None:
    url = "s3://bucket/voices"
    for settings in (
        resolve_settings({"voices": url}, {}),
        resolve_settings({}, {"VIVACE_VOICES": url}),
    ):
        assert settings.voices == url  # pathlib would remove a slash
    assert resolve_settings({"voices": "some/folder"}, {}).voices == Path("some/folder")


@pytest.mark.ci
def test_cloned_voice_is_shared_with_another_server(servers: tuple[Running, Running]) -> None:
    first, second = servers
    assert speak(second, voice="anna").status_code == 400
    files = {"audio_sample": ("anna.wav", recording(), "audio/wav")}
    url = f"{first.url}/v1/audio/voices"
    made = httpx.post(url, files=files, data={"name": "anna"}, timeout=120)
    assert made.status_code == 200, made.text
    assert "anna" in ids(second)
    assert speak(second, voice="anna").status_code == 200
    again = httpx.post(
        f"{second.url}/v1/audio/voices", files=files, data={"name": "anna"}, timeout=120
    )
    assert again.status_code == 409
    assert httpx.delete(f"{second.url}/v1/audio/voices/anna", timeout=120).status_code == 200
    assert "anna" not in ids(first)
    assert speak(first, voice="anna").status_code == 400


def test_described_voice_is_shared_with_another_server(servers: tuple[Running, Running]) -> None:
    first, second = servers
    body = {"name": "calm", "type": "prompt", "prompt": "A calm voice.", "model": "design"}
    made = httpx.post(f"{first.url}/v1/audio/voices", json=body, timeout=120)
    assert made.status_code == 200, made.text
    shown = httpx.get(f"{second.url}/v1/audio/voices/calm", timeout=120).json()
    assert shown["prompt"] == "A calm voice."
    assert speak(second, voice="calm", model="design").status_code == 200
    assert httpx.delete(f"{second.url}/v1/audio/voices/calm", timeout=120).status_code == 200
    assert "calm" not in ids(first)


def test_unreachable_voice_store_is_503(
    servers: tuple[Running, Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = servers

    def refuse(*_: Any, **__: Any) -> None:
        raise TimeoutError("away")

    library = first.context.models.loaded()[0].voices.library
    monkeypatch.setattr(library, "_store", type("Away", (), {"__getattr__": lambda *_: refuse})())
    answer = speak(first, voice="anybody", model="base")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "voice_store"
    assert answer.headers["retry-after"]
