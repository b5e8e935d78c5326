"""Missing and invalid tensors raise CheckpointError; shards and fine-tuned checkpoints load."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.support.checkpoints import (
    CODEC,
    CPU,
    HEAD,
    MODEL,
    NORM,
    Tensors,
    edit_json,
    edit_tensors,
    load,
    shard,
)
from tests.support.tiny import block_of
from vivace.checkpoint import Checkpoint
from vivace.errors import CheckpointError, UnsupportedRequestError

# --- Tensors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [MODEL, CODEC])
def test_missing_tensor_raises_with_its_name(folder: Path, path: str) -> None:
    name = next(iter(load_file(folder / path)))
    edit_tensors(folder / path, lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match=f"lacks tensors: {name}$"):
        load(folder)


@pytest.mark.parametrize("path", [MODEL, CODEC])
def test_unknown_tensor_raises_with_its_name(folder: Path, path: str) -> None:
    edit_tensors(folder / path, lambda tensors: tensors.update(extra=torch.ones(1)))
    with pytest.raises(CheckpointError, match=r"has unknown tensors: extra$"):
        load(folder)


@pytest.mark.parametrize(("num_extra", "others"), [(8, " and 3 more"), (5, "")])
def test_error_lists_five_names_and_counts_the_others(
    folder: Path, num_extra: int, others: str
) -> None:
    extra = {f"extra.{number}": torch.ones(1) for number in range(num_extra)}
    edit_tensors(folder / MODEL, lambda tensors: tensors.update(extra))
    with pytest.raises(CheckpointError, match=rf"extra\.0, .*extra\.4{others}$"):
        load(folder)


@pytest.mark.parametrize(("path", "name"), [(MODEL, NORM), (CODEC, "decoder.pre_conv.conv.bias")])
def test_mis_shaped_tensor_raises_with_both_shapes(folder: Path, path: str, name: str) -> None:
    width = len(load_file(folder / path)[name])
    edit_tensors(folder / path, lambda tensors: tensors.update({name: torch.ones(width + 1)}))
    expected = rf"{name} has shape \[{width + 1}\]; config\.json requires \[{width}\]"
    with pytest.raises(CheckpointError, match=expected):
        load(folder)


def test_tensor_with_another_shape_of_equal_size_is_rejected(folder: Path) -> None:
    edit_tensors(folder / MODEL, lambda tensors: tensors.update({NORM: tensors[NORM][None]}))
    with pytest.raises(CheckpointError, match=rf"{NORM} has shape \[1, 32\]; config\.json req"):
        load(folder)


def test_finite_weights_whose_sum_overflows_float16_are_accepted(folder: Path) -> None:
    wide = torch.full((1088, 32), 500.0, dtype=torch.float16)
    edit_tensors(folder / MODEL, lambda tensors: tensors.update({HEAD: wide}))
    model = Checkpoint.open(folder).load_plain_model(CPU, torch.float16)
    assert torch.equal(model.talker.codec_head.weight, wide)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("path", [MODEL, CODEC])
def test_non_finite_weight_raises_with_its_name(folder: Path, path: str, value: float) -> None:
    name = list(load_file(folder / path))[-1]

    def spoil(tensors: Tensors) -> None:
        tensors[name].view(-1)[-1] = value

    edit_tensors(folder / path, spoil)
    with pytest.raises(CheckpointError, match=f"{name} contains non-finite values"):
        load(folder)


def test_opposite_infinities_are_detected(folder: Path) -> None:
    def spoil(tensors: Tensors) -> None:
        tensors[HEAD][0, 0], tensors[HEAD][0, 1] = float("inf"), float("-inf")

    edit_tensors(folder / MODEL, spoil)
    with pytest.raises(CheckpointError, match=f"{HEAD} contains non-finite values"):
        load(folder)


def test_quantized_tensor_is_rejected(folder: Path) -> None:
    edit_tensors(folder / MODEL, lambda tensors: tensors.update({NORM: tensors[NORM].char()}))
    with pytest.raises(
        CheckpointError, match=rf"{NORM} is torch\.int8; only checkpoints that vivace"
    ):
        load(folder)


# --- Fine-tunes -------------------------------------------------------------------------------


def fine_tune(folder: Path, speaker: str, *, keeps_encoder: bool) -> None:
    """Files of the official fine-tuning script: a Base's files, another type, one speaker."""
    edit_json(folder / "config.json", "tts_model_type", value="custom_voice")
    edit_json(folder / "config.json", "talker_config", "spk_id", value={speaker: 900})
    edit_json(folder / "config.json", "talker_config", "spk_is_dialect", value={speaker: False})
    if not keeps_encoder:
        edit_tensors(folder / MODEL, drop_speaker_encoder)


def drop_speaker_encoder(tensors: Tensors) -> None:
    names = [name for name in tensors if name.startswith("speaker_encoder")]
    assert names
    for name in names:
        del tensors[name]


@pytest.mark.parametrize("keeps_encoder", [False, True])
def test_fine_tune_of_the_official_script_speaks(folder: Path, keeps_encoder: bool) -> None:
    fine_tune(folder, "Speaker_Test", keeps_encoder=keeps_encoder)
    tts = load(folder)
    assert tts.model_type == "custom_voice"
    assert tts.speak("Hello.", voice="speaker_test", seed=1, max_frames=3).samples.any()
    with pytest.raises(UnsupportedRequestError, match="cannot clone a voice"):
        tts.clone((np.ones(24_000, np.float32), 24_000))


def test_base_without_its_speaker_encoder_is_rejected(folder: Path) -> None:
    edit_tensors(folder / MODEL, drop_speaker_encoder)
    with pytest.raises(CheckpointError, match=r"lacks tensors: speaker_encoder\."):
        load(folder)


# --- Shards -----------------------------------------------------------------------------------


def test_shards_load_like_a_single_file(folder: Path, tiny_folder: Path) -> None:
    tensors = shard(folder)
    assert not (folder / MODEL).exists()
    model = Checkpoint.open(folder).load_model(CPU, torch.bfloat16)
    state = model.state_dict()
    assert state.keys() == tensors.keys()
    for name, tensor in state.items():
        assert torch.equal(tensor, tensors[name]), name


def test_tensor_in_two_shards_raises_with_its_name(folder: Path) -> None:
    tensors = shard(folder)
    second = folder / "model-00002-of-00003.safetensors"
    first_name = next(iter(tensors))
    edit_tensors(second, lambda part: part.update({first_name: tensors[first_name]}))
    with pytest.raises(CheckpointError, match=f"{first_name} is in two files"):
        load(folder)


def test_missing_shard_raises_with_its_name(folder: Path) -> None:
    shard(folder)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00003\.safetensors is missing"):
        load(folder)


@pytest.mark.parametrize(
    "name",
    ["../base/model.safetensors", "/etc/passwd", "a/b.safetensors", "config.json", "", 7, ["x"]],
)
def test_shard_name_that_leaves_the_folder_is_rejected(folder: Path, name: Any) -> None:
    shutil.move(folder / MODEL, folder.parent / MODEL)
    index = {"weight_map": {NORM: "model-1.safetensors", HEAD: name}}
    (folder / f"{MODEL}.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="is not the name of a file in this folder"):
        load(folder)


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": ["a"]}])
def test_index_without_a_map_is_rejected(folder: Path, index: Any) -> None:
    (folder / MODEL).unlink()
    (folder / f"{MODEL}.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="no weight_map"):
        load(folder)


# --- Derivatives ------------------------------------------------------------------------------


def test_fine_tuned_checkpoint_with_another_speaker_speaks(
    tiny_folder: Path, tmp_path: Path
) -> None:
    """Like the official script: a base without its speaker encoder and with one more id."""
    folder = Path(shutil.copytree(tiny_folder / "base", tmp_path / "tuned"))
    path = folder / "config.json"
    edit_json(path, "tts_model_type", value="custom_voice")
    edit_json(path, "talker_config", "spk_id", value={"ada": 1016})
    edit_json(path, "talker_config", "spk_is_dialect", value={"ada": False})
    edit_json(path, "speaker_encoder_config")

    def tune(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith("speaker_encoder.")]:
            del tensors[name]
        tensors["talker.model.codec_embedding.weight"][1016] = 0.5

    edit_tensors(folder / MODEL, tune)
    with load(folder) as tts:
        assert tts.speakers == ["ada"]
        first, again = (tts.speak("Hello.", voice=v, seed=1, max_frames=3) for v in ("ada", None))
        np.testing.assert_array_equal(first.codes, again.codes)


def test_speaker_added_beside_the_released_ones_speaks(tiny_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_folder / "custom_voice", tmp_path / "tuned"))
    speakers = json.loads((folder / "config.json").read_text())["talker_config"]["spk_id"]
    edit_json(folder / "config.json", "talker_config", "spk_id", value=speakers | {"ada": 1016})
    with load(folder) as tts:
        assert "ada" in tts.speakers
        assert "vivian" in tts.speakers
        codes = [tts.speak("Hello.", voice=v, temperature=0, max_frames=8).codes
                 for v in ("ada", "vivian")]  # fmt: skip
        assert not np.array_equal(codes[0], codes[1])


# --- Filling ----------------------------------------------------------------------------------


def every_tensor(module: nn.Module) -> Tensors:
    return dict(module.named_parameters()) | dict(module.named_buffers())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loaded_model_is_complete_frozen_and_in_one_dtype(folder: Path, dtype: torch.dtype) -> None:
    checkpoint = Checkpoint.open(folder)
    parts = ((checkpoint.load_model(CPU, dtype), dtype), (checkpoint.load_codec(CPU), None))
    for module, wanted in parts:
        assert not module.training
        assert not any(child.training for child in module.modules())
        for name, tensor in every_tensor(module).items():
            assert tensor.device == CPU, name
            assert tensor.dtype == (wanted or torch.float32), name
            assert not tensor.requires_grad, name


def test_loading_allocates_every_weight_once(folder: Path) -> None:
    """Fused projections share the memory of their parts."""
    model = Checkpoint.open(folder).load_model(CPU, torch.bfloat16)
    tensors = [*model.parameters(), *model.buffers()]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    needed = sum(parameter.nbytes for parameter in model.parameters())
    norms = sum(buffer.nbytes for name, buffer in model.named_buffers() if "qk_scale" in name)
    assert sum(storages.values()) == needed + norms
    attention = block_of(model.talker.model.layers, 0).self_attn
    assert attention.qkv_weight is not None
    assert attention.q_proj.weight.data_ptr() == attention.qkv_weight.data_ptr()


def test_model_is_built_on_the_meta_device(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class BuiltError(Exception):
        """Raises before the model is filled, because work on meta tensors imports much of torch."""

    built: list[set[str]] = []

    def stop_before_filling(module: nn.Module, *_: Any) -> None:
        built.append({tensor.device.type for tensor in every_tensor(module).values()})
        raise BuiltError

    monkeypatch.setattr("vivace.checkpoint.tensors.fill", stop_before_filling)
    checkpoint = Checkpoint.open(folder)
    with pytest.raises(BuiltError):
        checkpoint.load_model(CPU, torch.float32)
    with pytest.raises(BuiltError):
        checkpoint.load_codec(CPU)
    assert built == [{"meta"}, {"meta"}]


def test_files_can_be_deleted_after_loading(folder: Path) -> None:
    tts = load(folder)
    voice = tts.clone((np.sin(np.arange(36_000) * 0.05).astype(np.float32), 24_000))
    before = tts.speak("Hello.", voice=voice, seed=1, max_frames=2)
    shutil.rmtree(folder)
    after = tts.speak("Hello.", voice=voice, seed=1, max_frames=2)
    np.testing.assert_array_equal(before.samples, after.samples)
