"""The FastAPI example of docs/streaming.md serves speech and maps errors to status codes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import soundfile
from fastapi.testclient import TestClient

from tests.docs.test_docs import snippets
from tests.support.project import ROOT
from vivace import TTS
from vivace.errors import QueueFullError

TEXT = "Hello there."


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    (code,) = (one for one in snippets(ROOT / "docs" / "streaming.md") if "FastAPI(" in one)
    names: dict[str, Any] = {}
    exec(compile(code, "docs/streaming.md", "exec"), names)
    with TestClient(names["app"]) as client:
        yield client


def tts_of(client: TestClient) -> TTS:
    return client.app.state.tts  # type: ignore[attr-defined]


def test_speech_endpoint_returns_mp3(client: TestClient) -> None:
    answer = client.get("/whole", params={"text": TEXT})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "audio/mpeg"
    samples, rate = soundfile.read(io.BytesIO(answer.content))
    assert rate == 24_000
    assert len(samples) > 0.3 * rate


def test_stream_endpoint_returns_pcm_of_same_voice(client: TestClient) -> None:
    answer = client.get("/stream", params={"text": TEXT})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "audio/L16;rate=24000"
    samples = np.frombuffer(answer.content, "<i2")
    assert len(samples) > 0.3 * 24_000
    assert np.abs(samples).max() > 1_000


@pytest.mark.parametrize("path", ["/whole", "/stream"])
def test_unspeakable_text_returns_400(client: TestClient, path: str) -> None:
    answer = client.get(path, params={"text": "..."})
    assert answer.status_code == 400
    assert "nothing to speak" in answer.json()["detail"]


@pytest.mark.parametrize("path", ["/whole", "/stream"])
def test_full_queue_returns_503(
    client: TestClient, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(utterance: object) -> None:
        raise QueueFullError(8, 2.2)

    monkeypatch.setattr(tts_of(client).engine, "submit", refuse)
    answer = client.get(path, params={"text": TEXT})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "3"
