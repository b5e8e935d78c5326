"""Benchmarks of random weights, in smoke size: the shape is that of a tiny checkpoint."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.support.project import ROOT, load_script
from vivace import TTS

TINY_TURN = ["--device", "cpu", "--backend", "eager", "--streams", "1", "--frames", "2"]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch, tiny_folder: Path) -> ModuleType:
    """benchmarks/engine.py; a released name gives the configuration of a tiny checkpoint."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    engine = load_script(ROOT / "benchmarks" / "engine.py")
    load_configs = engine.load_configs
    monkeypatch.setattr(
        engine, "load_configs", lambda shape: load_configs(str(tiny_folder / "custom_voice"))
    )
    monkeypatch.setattr(engine, "RELEASED_MODELS", {})
    opened = engine.Checkpoint.open
    monkeypatch.setattr(engine.Checkpoint, "open", lambda _: opened(tiny_folder / "custom_voice"))
    return engine


def test_engine_benchmark_writes_its_report(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "engine.json"
    turn = [*TINY_TURN, "--repeats", "1", "--rounds", "1", "--json", str(path)]
    monkeypatch.setattr(sys, "argv", ["engine.py", "0.6B-CustomVoice", *turn])
    benchmark.main()
    report = json.loads(path.read_text("utf-8"))
    assert report["model"] == "0.6B-CustomVoice, random weights"
    assert [row["streams"] for row in report["throughput"]] == [1]


def test_serve_benchmark_loads_random_weights_of_a_released_shape(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = load_script(ROOT / "benchmarks" / "serve.py")
    monkeypatch.setattr(sys, "argv", ["serve.py", "1.7B-CustomVoice", *TINY_TURN])
    with serve.load(serve.parse_arguments()) as tts:
        audio = tts.speak("Hello.", seed=1, max_frames=2, min_frames=2, guard=False)
    assert len(audio.codes) == 2


def test_completeness_cost_benchmark_loads_random_weights_of_a_released_shape(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = load_script(ROOT / "benchmarks" / "completeness_cost.py")
    monkeypatch.setattr(cost.retry, "MAX_RETRIES", cost.retry.MAX_RETRIES)
    monkeypatch.setattr(cost.follower, "TAIL_FRAMES", cost.follower.TAIL_FRAMES)
    turn = ["--device", "cpu", "--backend", "eager", "--streams", "1"]
    monkeypatch.setattr(sys, "argv", ["completeness_cost.py", "0.6B-CustomVoice", *turn])
    with cost.load(cost.parse()) as tts:
        assert tts.engine.backend.name == "eager"


def test_written_checkpoint_of_a_released_shape_can_be_loaded(
    monkeypatch: pytest.MonkeyPatch, tiny_folder: Path, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    shapes = load_script(ROOT / "benchmarks" / "shapes.py")
    tiny = tiny_folder / "custom_voice"
    config = json.loads((tiny / "config.json").read_text("utf-8"))
    codec = json.loads((tiny / "speech_tokenizer" / "config.json").read_text("utf-8"))
    config["talker_config"]["text_vocab_size"] = 151_936
    monkeypatch.setattr(shapes, "released_config", lambda shape: config)
    monkeypatch.setattr(shapes, "RELEASED_CODEC", codec)
    shapes.write_checkpoint("0.6B-CustomVoice", tmp_path / "made", torch.device("cpu"))
    with TTS.load(tmp_path / "made", device="cpu") as tts:
        audio = tts.speak("Hello.", seed=1, max_frames=2, min_frames=2, guard=False)
    assert len(audio.codes) == 2
    assert tts.tokenizer.vocab_size > shapes.NUM_TOKENS
