"""Quantized checkpoints: written and loaded like plain ones; damaged ones name the tensor."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.checkpoints import NORM, edit_json, edit_tensors
from tests.support.quantized import write_quantized
from tests.support.tiny import TINY_NAMES
from vivace import TTS
from vivace.checkpoint import Checkpoint
from vivace.errors import CheckpointError, RequestError
from vivace.model.config import IntWeights
from vivace.model.quantized import dequantize
from vivace.model.quantized_layers import quantized_layers

CPU = torch.device("cpu")
MODEL = "model.safetensors"
DOWN = "talker.model.layers.1.mlp.down_proj"
BOTH_SIZES = ("custom_voice_projected", "base")
WEIGHTS: tuple[IntWeights, ...] = ("int8", "int4")

Tensors = dict[str, Tensor]
Change = Callable[[Tensors], Any]


@pytest.fixture
def folder(few_int4: Path, tmp_path: Path) -> Path:
    """A quantized checkpoint that a test may change."""
    return Path(shutil.copytree(few_int4, tmp_path / "int4"))


def speak(folder: Path, **options: Any) -> np.ndarray[Any, Any]:
    with TTS.load(folder, device="cpu", **options) as tts:
        voice = tts.speakers[0] if tts.speakers else None
        return tts.speak("Hello.", voice=voice, seed=1, max_frames=5).codes


@pytest.mark.parametrize("weights", WEIGHTS)
def test_quantized_folder_speaks_like_a_model_quantized_at_load(
    tiny_folder: Path, tmp_path: Path, weights: IntWeights
) -> None:
    source = tiny_folder / "custom_voice"
    target = write_quantized(source, tmp_path / "made", weights)
    stored = speak(target)
    assert np.array_equal(stored, speak(source, weights=weights))
    assert np.array_equal(stored, speak(target, weights=weights))
    with TTS.load(target) as tts:
        assert f"float32 with weights in {weights}" in repr(tts)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in BOTH_SIZES else pytest.mark.slow) for n in TINY_NAMES],
)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_values_are_those_of_the_source_within_the_rounding(
    tiny_folder: Path, tmp_path: Path, name: str, weights: IntWeights
) -> None:
    source = Checkpoint.open(tiny_folder / name)
    target = Checkpoint.open(write_quantized(source.folder, tmp_path / "made", weights))
    plain = source.load_model(CPU, torch.bfloat16).state_dict()
    restored = target.load_model(CPU, torch.bfloat16).state_dict()  # as for a GPU
    assert set(plain) == set(restored)
    limit = 0.15 if weights == "int4" else 0.02
    for key, tensor in plain.items():
        assert restored[key].dtype == tensor.dtype, key
        if "proj" in key or "head" in key:
            error = (restored[key] - tensor).float().norm() / tensor.float().norm()
            assert float(error) < limit, key
        else:
            assert torch.equal(restored[key], tensor), key


def test_int4_model_has_int8_heads_and_bfloat16_embeddings(folder: Path) -> None:
    model = Checkpoint.open(folder).load_model(CPU, torch.float32)
    bits = {name.rpartition(".")[2]: layer.bits for name, layer in quantized_layers(model)}
    assert {bits[name] for name in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")} == {4}
    assert {bits[name] for name in ("codec_head", "0")} == {8}
    assert model.talker.model.text_embedding.weight.dtype == torch.bfloat16
    assert model.dtype == torch.float32
    assert model.talker.model.text_embedding(torch.tensor([1])).dtype == torch.float32


def test_stored_numbers_become_the_dtype_of_the_model(folder: Path) -> None:
    edit_tensors(folder / MODEL, lambda tensors: tensors.update({NORM: tensors[NORM].bfloat16()}))
    assert Checkpoint.open(folder).load_model(CPU, torch.float32).dtype == torch.float32


def test_model_quantized_at_load_is_frozen(few_folder: Callable[[str], Path]) -> None:
    model = Checkpoint.open(few_folder("base")).load_model(CPU, torch.float32, "int8")
    assert not any(module.training for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_joined_matrices_have_the_rows_of_their_parts(tiny_folder: Path, folder: Path) -> None:
    plain = load_file(tiny_folder / "custom_voice" / MODEL)
    model = Checkpoint.open(folder).load_model(CPU, torch.float32)
    attention = "talker.model.layers.0.self_attn"
    joined = dequantize(dict(quantized_layers(model))[f"{attention}.qkv_proj"].linear)
    parts = [plain[f"{attention}.{part}_proj.weight"].float() for part in "qkv"]
    assert float((joined - torch.cat(parts)).norm() / joined.norm()) < 0.15


def edit(folder: Path, change: Change) -> None:
    tensors = load_file(folder / MODEL)
    change(tensors)
    save_file(tensors, folder / MODEL)


def _set(name: str, make: Callable[[Tensor], Tensor]) -> Change:
    return lambda tensors: tensors.update({name: make(tensors[name]).contiguous()})


def _with_nan(tensor: Tensor) -> Tensor:
    tensor = tensor.clone()
    tensor.view(-1)[3] = torch.nan
    return tensor


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set(f"{DOWN}.scale", _with_nan), f"{DOWN}.scale contains non-finite values"),
        (_set("talker.codec_head.scale", _with_nan), "codec_head.scale contains non-finite"),
        (_set(f"{DOWN}.scale", lambda each: each[:, 1:]), f"{DOWN}.scale has shape"),
        (_set(f"{DOWN}.weight", lambda each: each[:, 1:]), f"{DOWN}.weight has shape"),
        (_set(f"{DOWN}.weight", lambda each: each.to(torch.int8)), f"{DOWN}.weight is torch.int8"),
        (_set(f"{DOWN}.weight", lambda each: each.float()), f"{DOWN}.weight is torch.float32"),
        (_set(f"{DOWN}.scale", lambda each: each.to(torch.int8)), f"{DOWN}.scale is torch.int8"),
        (
            _set("talker.codec_head.weight", lambda each: each.fill_(-128)),
            "head.weight has numbers",
        ),
        (_set("talker.codec_head.scale", lambda each: -each), "codec_head.scale has negative"),
        (lambda tensors: tensors.pop(f"{DOWN}.scale"), f"lacks tensors: {DOWN}.scale"),
        (lambda tensors: tensors.update(extra=torch.ones(1)), "unknown tensors: extra"),
    ],
)
def test_invalid_tensor_raises_with_its_name(folder: Path, change: Change, message: str) -> None:
    edit(folder, change)
    with pytest.raises(CheckpointError, match=message):
        TTS.load(folder, device="cpu")


@pytest.mark.parametrize("share", [0.4, 0.7, 0.999])
def test_truncated_file_raises_with_the_first_missing_tensor(folder: Path, share: float) -> None:
    path = folder / MODEL
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    kept = int(share * len(content))
    header = json.loads(content[8 : 8 + length])
    offsets = {name: each["data_offsets"] for name, each in header.items() if name[0] != "_"}
    [cut] = [name for name, (a, b) in offsets.items() if a < kept - 8 - length + 1 <= b]
    path.write_bytes(content[:kept])
    with pytest.raises(CheckpointError, match=f"ends before the end of {cut}$"):
        TTS.load(folder, device="cpu")


def edit_config(folder: Path, value: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = value
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"quant_method": "vivace", "weights": "int8"}, "weight has shape .*|is torch.uint8"),
        ({"quant_method": "vivace", "weights": "int2"}, "weights is 'int2'; only int8 and int4"),
        ({"quant_method": "awq", "weights": "int4"}, "quant_method is 'awq'; only vivace"),
        ({"quant_method": "vivace"}, "needs the key 'weights'"),
        ({"quant_method": "vivace", "weights": 4}, "weights must be a string, not 4"),
        (None, "lacks tensors: "),
    ],
)
def test_config_of_another_format_is_rejected(folder: Path, value: object, message: str) -> None:
    edit_config(folder, value)
    with pytest.raises(CheckpointError, match=message):
        TTS.load(folder, device="cpu")


def test_plain_file_with_a_quantized_config_is_rejected(
    few_folder: Callable[[str], Path], folder: Path
) -> None:
    content = (few_folder("custom_voice") / MODEL).read_bytes()
    (folder / MODEL).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"lacks tensors: .*lm_head\.0\.scale"):
        TTS.load(folder, device="cpu")


@pytest.mark.parametrize("weights", ["int8", "fp8"])
def test_other_weights_than_the_stored_ones_are_refused(folder: Path, weights: Any) -> None:
    message = f"weights must be full or int4, not {weights}: .* is already quantized to int4"
    with pytest.raises(RequestError, match=message):
        TTS.load(folder, device="cpu", weights=weights)


def test_integer_weights_need_float32(tiny_folder: Path) -> None:
    with pytest.raises(RequestError, match="weights int8 needs device cpu and dtype float32"):
        TTS.load(tiny_folder / "base", device="cpu", dtype="bfloat16", weights="int8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop(f"{DOWN}.weight"), f"lacks tensors: {DOWN}.weight"),
        (lambda tensors: tensors.update(other=torch.zeros(1)), "has unknown tensors: other"),
    ],
)
def test_names_are_compared_before_weights_are_quantized(
    few_folder: Callable[[str], Path], tmp_path: Path, change: Change, message: str
) -> None:
    plain = Path(shutil.copytree(few_folder("base"), tmp_path / "plain"))
    edit_tensors(plain / MODEL, change)
    with pytest.raises(CheckpointError, match=message):
        TTS.load(plain, device="cpu", weights="int8")


def test_dimensions_are_checked_before_weights_are_quantized(
    few_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    plain = Path(shutil.copytree(few_folder("base"), tmp_path / "plain"))
    edit_json(plain / "config.json", "talker_config", "num_hidden_layers", value=1)
    with pytest.raises(CheckpointError, match="num_hidden_layers is 1; the tensors show 3"):
        TTS.load(plain, device="cpu", weights="int8")


def test_weights_that_cannot_be_quantized_are_named(tiny_folder: Path, tmp_path: Path) -> None:
    target = write_quantized(tiny_folder / "base", tmp_path / "made", "int8")
    plain = load_file(tiny_folder / "base" / MODEL)
    plain[f"{DOWN}.weight"] = torch.full_like(plain[f"{DOWN}.weight"], 1e7)
    save_file(plain, target / MODEL)
    edit_config(target, None)
    with pytest.raises(CheckpointError, match=f"{DOWN} cannot be quantized: its largest scale"):
        TTS.load(target, device="cpu", weights="int4")
