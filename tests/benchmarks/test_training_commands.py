"""Benchmark commands of fine-tuning and of trained weights, in smoke size."""

from __future__ import annotations

import json
import wave
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor

from tests.benchmarks.conftest import Run
from tests.support.tiny import Tiny
from vivace.checkpoint import EMBEDDED
from vivace.finetune.options import TrainOptions

WIDTH, NUM_HEADS, HEAD_DIM = 128, 2, 64


def read(path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return report


def test_finetune_command(run: Run, tmp_path: Path, tiny: Callable[[str], Tiny]) -> None:
    config = json.loads((EMBEDDED / "config.json").read_text("utf-8"))
    talker = config["talker_config"]
    del config["timing_config"]  # names a layer
    for part in (talker, talker["code_predictor_config"]):
        part["num_hidden_layers"] = 1
    out = tmp_path / "finetune.json"
    run("finetune.py", "--shapes", "embedded", "--steps", 1, "--device", "cpu", "--json", out,
        "--whole", "--checkpoint", tiny("base").checkpoint.folder,
        released_config=lambda shape: config, NUM_RECORDINGS=3,
        TrainOptions=partial(TrainOptions, rows_per_batch=64, rows_per_step=64))  # fmt: skip
    steps, whole = read(out)["runs"]
    assert steps["step_s"] > 0
    assert np.isfinite(steps["loss"])
    assert whole["recordings"] == 2  # one is held out


class FakeTTS:
    """Every voice speaks a constant: the number of its speaker."""

    def __init__(self, speakers: list[str]) -> None:
        self.speakers = speakers

    @classmethod
    def load(cls, *_: object, adapter: Path | None = None, **__: object) -> FakeTTS:
        return cls(["heart", "michael"] if adapter is None else ["me"])

    def __enter__(self) -> FakeTTS:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def speak(self, text: str, *, voice: str, seed: int) -> SimpleNamespace:
        level = {"me": 0.5, "heart": -0.5, "michael": 0.0}[voice]
        samples = np.full(1_600, level, np.float32)
        return SimpleNamespace(samples=samples, sample_rate=16_000)


class FakeVoiceprint:
    def __call__(self, samples: NDArray[np.float32], sample_rate: int) -> NDArray[np.float32]:
        level = float(samples.mean())
        return np.array([np.sin(level), np.cos(level)], np.float32)


def test_finetune_proof_command(run: Run, tmp_path: Path) -> None:
    (tmp_path / "wavs").mkdir()
    with wave.open(str(tmp_path / "wavs" / "1.wav"), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(np.full(1_600, 16_384, np.int16).tobytes())
    (tmp_path / "lines.txt").write_text("one two\nthree four\n", "utf-8")
    out = tmp_path / "proof.json"
    run("finetune_proof.py", "--adapter", tmp_path / "me.safetensors", "--recordings", tmp_path,
        "--text", tmp_path / "lines.txt", "--json", out,
        TTS=FakeTTS, Voiceprint=FakeVoiceprint, SpeakerJudge=FakeVoiceprint,
        Recogniser=lambda: lambda *_: "one two")  # fmt: skip
    report = read(out)
    assert report["word_errors"] == dict.fromkeys(("me", "heart", "michael"), 0.5)
    for likeness in (report["likeness"][judge] for judge in ("ERes2Net", "GE2E")):
        assert likeness["me, recordings"] > likeness["michael"] > likeness["heart"]
    assert set(report["goals"].values()) == {True}


class FakeGguf:
    """A language model of one layer with a vocabulary of single bytes."""

    values: ClassVar[dict[str, list[str]]] = {
        "tokenizer.ggml.tokens": sorted(ByteLevel.alphabet()),
        "tokenizer.ggml.merges": [],
    }
    places: ClassVar[dict[str, tuple[int, ...]]] = {
        "token_embd.weight": (256, WIDTH),
        "output.weight": (256, WIDTH),
        "output_norm.weight": (WIDTH,),
        "blk.0.attn_norm.weight": (WIDTH,),
        "blk.0.ffn_norm.weight": (WIDTH,),
        **{f"blk.0.attn_{part}.weight": (WIDTH, WIDTH) for part in ("q", "k", "v", "output")},
        **{f"blk.0.attn_{part}.bias": (WIDTH,) for part in "qkv"},
        **{f"blk.0.ffn_{part}.weight": (WIDTH, WIDTH) for part in ("gate", "up", "down")},
    }

    def __init__(self, path: Path) -> None:
        assert path.exists()

    def tensor(self, name: str) -> Tensor:
        generator = torch.Generator().manual_seed(len(name))
        return torch.randn(self.places[name], generator=generator) / WIDTH**0.5


def test_trained_weights_command(run: Run, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("A short text.", "utf-8")
    out = tmp_path / "trained.json"
    run("trained_weights.py", tmp_path, tmp_path / "text.txt", "--tokens", 8, "--json", out,
        GgufFile=FakeGguf, NUM_LAYERS=1, HEAD_DIM=HEAD_DIM)  # fmt: skip
    report = read(out)
    assert report["tokens"] == 8
    errors = {kind: of["attn_q"] for kind, of in report["product_errors_percent"].items()}
    assert 0 < errors["int8 least squares"] < errors["int4 least squares"] < errors["int4 range"]
    assert errors["activations per group"] < errors["activations per row"]
    assert [row["same_likeliest_percent"] for row in report["logits"]][:1] == [100.0]
