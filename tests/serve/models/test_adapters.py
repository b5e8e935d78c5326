"""`--adapters DIR`: every adapter of a folder is served as a voice."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from tests.support.adapters import save_adapters
from tests.support.serving import running
from tests.support.tiny import Tiny
from vivace import TTS, Audio
from vivace.adapter import Adapter, AdapterInfo, free_speaker_ids
from vivace.checkpoint import EMBEDDED, Checkpoint
from vivace.device import choice
from vivace.errors import RequestError
from vivace.serve.setting_sources import resolve_settings
from vivace.serve.settings import ModelSpec, ServeSettings

LoadTiny = Callable[[str], Tiny]
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
            licence="CC0" if name == "george" else "",
            consent="George agreed" if name == "george" else "",
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
        notes = {voice["id"]: (voice["licence"], voice["consent"]) for voice in listed}
        assert notes["george"] == ("CC0", "George agreed")
        assert notes["emma"] == notes["heart"] == (None, None)
        for voice in ("george", "emma", "heart"):
            answer = httpx.post(
                f"{server.url}/v1/audio/speech",
                json={"model": "tts-1", "input": "Hello.", "voice": voice, "max_frames": 4,
                      "response_format": "pcm"},
                timeout=60.0,
            )  # fmt: skip
            assert answer.status_code == 200, answer.text
            assert len(answer.content) > 1_000
            kind = "preset" if voice == "heart" else "fine-tuned"
            assert f"voice={kind};" in answer.headers["x-vivace-provenance"]


def test_one_model_serves_all_adapters_and_the_base_at_once(tmp_path: Path, tiny: LoadTiny) -> None:
    part, folder = tiny("base"), tmp_path / "adapters"
    folder.mkdir()
    paths = save_adapters(part, folder, ["ann", "bob"])
    expected = {}
    for name, path in paths.items():
        with TTS.load(
            part.checkpoint.folder, device="cpu", backend="eager", adapter=path
        ) as merged:
            expected[name] = pcm(merged.speak("Hello.", seed=5, max_frames=6, trim=False))
    settings = ServeSettings(
        port=0,
        device="cpu",
        backend="eager",
        models=(ModelSpec("tiny", str(part.checkpoint.folder)),),
        voices=tmp_path / "voices",
        adapters=folder,
    )
    with running(settings) as server:
        models = server.context.models
        assert models.names == ["tiny"]
        assert [model.name for model in models.loaded()] == ["tiny"]
        [model] = models.loaded()
        assert {one.engine for one in model.adapted.values()} == {model.engine}
        names = [one["id"] for one in httpx.get(f"{server.url}/v1/models").json()["data"]]
        assert names == ["tiny", "ann", "bob"]
        requests = [{"voice": "ann"}, {"voice": "bob"}, {"model": "bob"}, {"voice": "ANN"}]
        with ThreadPoolExecutor(len(requests)) as pool:
            answers = list(pool.map(partial(ask, server.url), requests))
        unknown = ask(server.url, {"model": "ann", "voice": "eve"})
        base = ask(server.url, {"model": "tiny"})
    wanted = [expected[name] for name in ("ann", "bob", "bob", "ann")]
    for answer, audio in zip(answers, wanted, strict=True):
        assert answer.status_code == 200, answer.text
        assert_close(answer.content, audio)
        assert "voice=fine-tuned;" in answer.headers["x-vivace-provenance"]
    assert unknown.status_code == 400
    assert "ann" in unknown.json()["error"]["message"]
    assert base.json()["error"]["code"] == "voice_not_found"  # a base needs a clone


def ask(url: str, fields: dict[str, str]) -> httpx.Response:
    body = {"model": "tts-1", "input": "Hello.", "max_frames": 6, "seed": 5}
    body |= {"response_format": "pcm", **fields}
    return httpx.post(f"{url}/v1/audio/speech", json=body, timeout=60.0)


def pcm(audio: Audio) -> bytes:
    return (audio.samples * 32767).round().astype("<i2").tobytes()


def assert_close(found: bytes, expected: bytes) -> None:
    """The frames of `expected` are equal but for the rounding of PyTorch's codec."""
    first, second = (np.frombuffer(one, "<i2").astype(int) for one in (found, expected))
    assert 0 < len(second) <= len(first)
    assert abs(first[: len(second)] - second).max() <= 8


LARGE = (ModelSpec("large", "Qwen/Qwen3-TTS-12Hz-0.6B-Base"),)


@pytest.mark.parametrize(
    "fields",
    [
        {"backend": "cpu"},
        {"backend": "megakernel"},
        {"backend": "eager", "weights": "int8"},
        {"device": "cpu"},
        {"device": "cpu:0"},
        {},  # a small model runs on the CPU
        {"models": LARGE, "device": "cpu"},
    ],
)
def test_adapters_that_cannot_be_mixed_faster_have_a_model_each(
    adapters: Path, fields: dict[str, Any]
) -> None:
    base, *merged = ServeSettings(adapters=adapters, **fields).served_models
    assert (base.adapter, base.adapters) == (None, ())
    assert [(one.name, one.adapters) for one in merged] == [("emma", ()), ("george", ())]
    assert [one.adapter for one in merged] == sorted(adapters.iterdir())
    assert {one.source for one in merged} == {base.source}


@pytest.mark.parametrize(
    "fields",
    [
        {"backend": "eager"},
        {"backend": "cuda_graph"},
        {"device": "cuda:1"},
        {"models": LARGE, "device": "cuda"},
        {"device": "mps"},
    ],
)
def test_adapters_of_a_mixing_backend_share_one_model(
    adapters: Path, fields: dict[str, Any]
) -> None:
    [mixed] = ServeSettings(adapters=adapters, **fields).served_models
    assert list(mixed.adapter_paths) == ["emma", "george"]


@pytest.mark.parametrize(("has_gpu", "is_mixed"), [(True, True), (False, False)])
def test_auto_mixes_adapters_of_a_large_model_on_a_gpu(
    adapters: Path, monkeypatch: pytest.MonkeyPatch, has_gpu: bool, is_mixed: bool
) -> None:
    monkeypatch.setattr(choice, "may_have_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    first = ServeSettings(adapters=adapters, models=LARGE).served_models[0]
    assert bool(first.adapters) == is_mixed
    assert ServeSettings(adapters=adapters).served_models[0].adapters == ()


def test_adapter_with_whole_tensors_gets_a_model_of_its_own(adapters: Path) -> None:
    emma = Adapter.load(adapters / "emma.safetensors")
    replace(emma, weights={"talker.model.norm.weight": torch.ones(4)}).save(
        adapters / "whole.safetensors"
    )
    mixed, alone = ServeSettings(adapters=adapters, backend="eager").served_models
    assert list(mixed.adapter_paths) == ["emma", "george"]
    assert (alone.name, alone.adapter) == ("whole", adapters / "whole.safetensors")


def test_folder_without_adapters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"has no \.safetensors files"):
        resolve_settings({"adapters": str(tmp_path)}, {})
    with pytest.raises(RequestError, match="gone is not a folder"):
        resolve_settings({"adapters": str(tmp_path / "gone")}, {})


def test_adapter_named_like_a_model_is_refused(adapters: Path) -> None:
    (adapters / "emma.safetensors").rename(adapters / "vivace.safetensors")
    with pytest.raises(RequestError, match="two models are named 'vivace'"):
        resolve_settings({"adapters": str(adapters)}, {})
