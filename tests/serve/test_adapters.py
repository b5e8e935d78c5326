"""`--adapters DIR`: every adapter of a folder is served as a voice."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import torch

from tests.support.serving import running
from vivace.adapter import Adapter, AdapterInfo, free_speaker_ids
from vivace.checkpoint import EMBEDDED, Checkpoint
from vivace.errors import RequestError
from vivace.serve.setting_sources import resolve_settings
from vivace.serve.settings import ServeSettings

Q_PROJ = "talker.model.layers.0.self_attn.q_proj.weight"


@pytest.fixture
def adapters(tmp_path: Path) -> Path:
    folder = tmp_path / "adapters"
    folder.mkdir()
    checkpoint = Checkpoint.open(EMBEDDED)
    width = checkpoint.config.talker_config.hidden_size
    for name in ("george", "emma"):
        info = AdapterInfo(
            name=name,
            base="the embedded voice",
            base_digest=checkpoint.digest(),
            rank=1,
            scale=1.0,
            speakers=free_speaker_ids(checkpoint.config, [name]),
        )
        pair = torch.zeros(1, width), torch.zeros(width, 1)
        vectors = {name: torch.zeros(width)}
        adapter = Adapter(info=info, pairs={Q_PROJ: pair}, vectors=vectors)
        adapter.save(folder / f"{name}.safetensors")
    return folder


def test_adapters_are_listed_and_spoken_with(adapters: Path, tmp_path: Path) -> None:
    settings = ServeSettings(port=0, voices=tmp_path / "voices", adapters=adapters)
    with running(settings) as server:
        listed = httpx.get(f"{server.url}/v1/audio/voices").json()["data"]
        models = {voice["id"]: voice["model"] for voice in listed}
        assert models["george"] == "george"
        assert models["emma"] == "emma"
        assert models["heart"] == "vivace"
        for voice in ("george", "emma", "heart"):
            answer = httpx.post(
                f"{server.url}/v1/audio/speech",
                json={"model": "tts-1", "input": "Hello.", "voice": voice, "max_frames": 4,
                      "response_format": "pcm"},
                timeout=60.0,
            )  # fmt: skip
            assert answer.status_code == 200, answer.text
            assert len(answer.content) > 1_000


def test_folder_without_adapters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"has no \.safetensors files"):
        resolve_settings({"adapters": str(tmp_path)}, {})


def test_adapter_named_like_a_model_is_refused(adapters: Path) -> None:
    (adapters / "emma.safetensors").rename(adapters / "vivace.safetensors")
    with pytest.raises(RequestError, match="two models are named 'vivace'"):
        resolve_settings({"adapters": str(adapters)}, {})
