"""A quantized checkpoint that is read without PyTorch: the same audio, and no damaged file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.cli_harness import run_python
from tests.support.quantized import write_quantized
from tests.support.tiny import TINY_NAMES
from vivace import TTS, Voice
from vivace.backends.cpu.backend import CpuBackend
from vivace.backends.cpu.build import find_refusal
from vivace.checkpoint import EMBEDDED, Checkpoint
from vivace.errors import BackendUnavailableError, CheckpointError
from vivace.hub import CODEC
from vivace.model.config import IntWeights

pytestmark = pytest.mark.skipif(find_refusal() is not None, reason="there is no C++ library")

MODEL = "model.safetensors"
CODEC_MODEL = f"{CODEC}/{MODEL}"
DOWN = "talker.model.layers.1.mlp.down_proj"
HEAD = "talker.codec_head"
NARROW = "talker.code_predictor.small_to_mtp_projection"
TEXTS = "talker.model.text_embedding.weight"
FIRST = "talker.text_projection.linear_fc1"
SNAKE = "decoder.decoder.1.block.0.alpha"
WIDEN = "decoder.decoder.1.block.1.conv.weight"
QUERIES = "decoder.pre_transformer.layers.0.self_attn.q_proj.weight"
USAGE = "decoder.quantizer.rvq_rest.vq.layers.0._codebook.cluster_usage"
ENCODER = "encoder.encoder.layers.0.conv.weight"
ALL_WEIGHTS: tuple[IntWeights, ...] = get_args(IntWeights)

Tensors = dict[str, Tensor]
Change = Callable[[Tensors], Any]

SPEAK = """
import sys
from vivace import TTS

with TTS.load(sys.argv[1]) as tts:
    tts.warmup()
    tts.speak("Hello there, this is a whole sentence with quite a few words in it.", seed=1)
    for chunk in tts.stream("Hello.", seed=1):
        pass
    tts.engine.call(lambda: None)
print("torch" in sys.modules)
"""


@pytest.fixture
def folder(few_int4: Path, tmp_path: Path) -> Path:
    """A quantized checkpoint that a test may change."""
    return Path(shutil.copytree(few_int4, tmp_path / "int4"))


def speak(folder: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], bool]:
    """Codes, samples, and whether a model of PyTorch is loaded."""
    with TTS.load(folder, device="cpu") as tts:
        voice: str | Voice | None = tts.speakers[0] if tts.speakers else None
        if tts.model_type == "base":
            width = tts.checkpoint.config.talker_config.hidden_size
            voice = Voice(name="ada", speaker=np.ones(width, np.float32))
        instruct = "A calm voice." if tts.model_type == "voice_design" else None
        audio = tts.speak("Hello.", voice=voice, instruct=instruct, seed=1, max_frames=5)
        assert tts.loaded.open_runtime is not None
        return audio.codes, audio.samples, tts.loaded.open_runtime._loaded is not None


# Each kind of checkpoint and both formats. The other pairs are `slow`.
QUICK_PAIRS = (
    ("custom_voice", "int8"),
    ("custom_voice_projected", "int4"),
    ("voice_design", "int4"),
    ("base", "int8"),
)


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        pytest.param(*pair, marks=() if pair in QUICK_PAIRS else pytest.mark.slow)
        for pair in product(TINY_NAMES, ALL_WEIGHTS)
    ],
)
def test_speech_equals_speech_of_the_pytorch_model(
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    weights: IntWeights,
) -> None:
    folder = write_quantized(tiny_folder / name, tmp_path / "made", weights)
    codes, samples, is_loaded = speak(folder)
    assert not is_loaded
    monkeypatch.setattr(
        "vivace.engine.checkpoints.loading.load_without_torch", lambda *arguments: None
    )
    wanted_codes, wanted_samples, is_loaded = speak(folder)
    assert is_loaded
    assert np.array_equal(codes, wanted_codes)
    assert np.array_equal(samples, wanted_samples)


def test_quantized_voice_speaks_and_finds_its_head_without_pytorch(tmp_path: Path) -> None:
    folder = write_quantized(EMBEDDED, tmp_path / "voice", "int4")
    config = json.loads((folder / "config.json").read_text())
    assert config.pop("timing_config")
    (folder / "config.json").write_text(json.dumps(config))
    assert run_python(SPEAK, str(folder)).stdout.split() == ["False"]


def test_weights_are_described_before_and_after_pytorch_loads_them(folder: Path) -> None:
    with TTS.load(folder, device="cpu") as tts:
        description = repr(tts)
        assert "cpu in float32 with weights in int4" in description
        assert tts.loaded.runtime.model.weights == "int4"
        assert repr(tts) == description


def open_folder(folder: Path) -> CpuBackend:
    found = Checkpoint.open(folder)
    return CpuBackend.open(folder, found.config, found.codec_config, 1)


def edit(path: Path, change: Change) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def dequantized(tensor: Tensor) -> Tensor:
    """A matrix that is stored as if it was not quantized."""
    return torch.zeros(len(tensor), 2 * tensor.shape[1])


def put(name: str, make: Callable[[Tensor], Tensor]) -> Change:
    return lambda tensors: tensors.update({name: make(tensors[name]).contiguous()})


def filled(number: float) -> Callable[[Tensor], Tensor]:
    """Sets the last number of a tensor."""

    def make(tensor: Tensor) -> Tensor:
        tensor.view(-1)[-1] = number
        return tensor

    return make


@pytest.mark.parametrize(
    ("file", "change", "name"),
    [
        (MODEL, put(f"{DOWN}.scale", filled(torch.nan)), f"{DOWN}.scale"),
        (MODEL, put(f"{DOWN}.scale", filled(-torch.inf)), f"{DOWN}.scale"),
        (MODEL, put(f"{HEAD}.scale", filled(torch.inf)), f"{HEAD}.scale"),
        (MODEL, put(f"{HEAD}.scale", filled(-1)), f"{HEAD}.scale"),
        (MODEL, put(f"{HEAD}.weight", filled(-128)), f"{HEAD}.weight"),
        (MODEL, put(TEXTS, filled(torch.nan)), TEXTS),
        (MODEL, put(TEXTS, filled(-torch.nan)), TEXTS),
        (MODEL, put(TEXTS, filled(-torch.inf)), TEXTS),
        (MODEL, put(TEXTS, lambda each: each[:-1]), "text_vocab_size"),
        (MODEL, put(TEXTS, lambda each: each[..., None]), TEXTS),
        (MODEL, put(f"{FIRST}.weight", lambda each: each[..., None]), f"{FIRST}.weight"),
        (MODEL, put(f"{FIRST}.weight", lambda each: each[:, 1:]), f"{FIRST}.weight"),
        (MODEL, put(f"{FIRST}.weight", lambda each: each[1:]), f"{FIRST}.weight"),
        (MODEL, put(f"{FIRST}.bias", lambda each: each[1:]), f"{FIRST}.bias"),
        (MODEL, put(f"{DOWN}.weight", lambda each: each[1:]), f"{DOWN}.weight"),
        (MODEL, put(f"{DOWN}.weight", lambda each: each.to(torch.int8)), f"{DOWN}.weight"),
        (MODEL, put(f"{DOWN}.weight", lambda each: each.long()), f"{DOWN}.weight"),
        (MODEL, put(f"{DOWN}.scale", lambda each: each[:, 1:]), f"{DOWN}.scale"),
        (MODEL, put(f"{DOWN}.scale", lambda each: each.to(torch.uint8)), f"{DOWN}.scale"),
        (MODEL, lambda tensors: tensors.pop(f"{DOWN}.scale"), f"{DOWN}.scale"),
        (MODEL, lambda tensors: tensors.pop(f"{DOWN}.weight"), f"{DOWN}.weight"),
        (MODEL, put(f"{DOWN}.weight", lambda each: each[0, 0].clone()), f"{DOWN}.weight"),
        (MODEL, put(f"{DOWN}.weight", lambda each: each[0]), f"{DOWN}.weight"),
        (MODEL, put(f"{DOWN}.weight", dequantized), f"{DOWN}.weight"),
        (MODEL, lambda tensors: tensors.pop(f"{FIRST}.bias"), f"{FIRST}.bias"),
        (MODEL, lambda tensors: tensors.update({f"{HEAD}.bias": torch.ones(1088)}), f"{HEAD}.bias"),
        (MODEL, lambda tensors: tensors.update({f"{DOWN}.bias": torch.ones(64)}), f"{DOWN}.bias"),
        (MODEL, lambda tensors: tensors.update({f"{NARROW}.weight": torch.ones(64, 64)}), NARROW),
        (MODEL, lambda tensors: tensors.update(extra=torch.ones(1)), "extra"),
        (CODEC_MODEL, put(SNAKE, filled(torch.inf)), SNAKE),
        (CODEC_MODEL, put(SNAKE, lambda each: each[1:]), SNAKE),
        (CODEC_MODEL, put(SNAKE, lambda each: each[None]), SNAKE),
        (CODEC_MODEL, put(WIDEN, lambda each: each.transpose(0, 1)), WIDEN),
        (CODEC_MODEL, put(QUERIES, lambda each: each[:, 1:]), QUERIES),
        (CODEC_MODEL, put(USAGE, lambda each: each[1:]), USAGE),
        (CODEC_MODEL, put(ENCODER, filled(torch.nan)), ENCODER),
    ],
)
def test_unexpected_tensor_is_reported_by_the_reader_of_pytorch(
    folder: Path, file: str, change: Change, name: str
) -> None:
    edit(folder / file, change)
    with pytest.raises(BackendUnavailableError):
        open_folder(folder)
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        TTS.load(folder, device="cpu")


@pytest.mark.parametrize("stored", ALL_WEIGHTS)
def test_file_whose_config_names_no_format_is_not_read(
    tiny_folder: Path, tmp_path: Path, stored: IntWeights
) -> None:
    folder = write_quantized(tiny_folder / "custom_voice", tmp_path / "made", stored)
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BackendUnavailableError):
        open_folder(folder)
    with pytest.raises(CheckpointError, match=r"talker\..*proj\.weight"):
        TTS.load(folder, device="cpu")


@pytest.mark.parametrize("stored", ALL_WEIGHTS)
def test_file_of_another_format_than_the_config_is_not_read(
    tiny_folder: Path, tmp_path: Path, stored: IntWeights
) -> None:
    folder = write_quantized(tiny_folder / "custom_voice", tmp_path / "made", stored)
    [other] = set(ALL_WEIGHTS) - {stored}
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["weights"] = other
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BackendUnavailableError):
        open_folder(folder)
    with pytest.raises(CheckpointError, match=r"proj\.weight"):
        TTS.load(folder, device="cpu")


@pytest.mark.parametrize("section", ["talker", "predictor"])
def test_config_without_key_heads_is_rejected(folder: Path, section: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    talker = config["talker_config"]
    part = talker if section == "talker" else talker["code_predictor_config"]
    part["num_key_value_heads"] = 0
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="num_key_value_heads"):
        TTS.load(folder, device="cpu")
