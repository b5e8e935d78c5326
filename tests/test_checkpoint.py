"""`Checkpoint`: missing and invalid files and tensors raise; pickles are never loaded."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.support.tiny import block_of
from vivace import TTS, SamplingParams
from vivace.checkpoint import EMBEDDED, RELEASED, Checkpoint, find_folder, read_sampling
from vivace.errors import CheckpointError, UnsupportedRequestError
from vivace.model.config import ReadingConfig
from vivace.model.config_file import parse_model_config

CPU = torch.device("cpu")
MODEL = "model.safetensors"
CODEC = "speech_tokenizer/model.safetensors"
NORM = "talker.model.norm.weight"
HEAD = "talker.codec_head.weight"

Tensors = dict[str, Tensor]


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    """A copy of a base checkpoint that a test may change."""
    return Path(shutil.copytree(tiny_folder / "base", tmp_path / "base"))


def load(folder: Path) -> TTS:
    return TTS.load(folder, device="cpu")


def edit_json(path: Path, *keys: str, value: Any = ...) -> None:
    """Set or delete the value under these keys."""
    content = json.loads(path.read_text())
    section = content
    for key in keys[:-1]:
        section = section[key]
    if value is ...:
        del section[keys[-1]]
    else:
        section[keys[-1]] = value
    path.write_text(json.dumps(content))


def edit_tensors(path: Path, change: Callable[[Tensors], Any]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def shard(folder: Path, num_shards: int = 3) -> Tensors:
    """Replace model.safetensors by shards and an index; return its tensors."""
    tensors = load_file(folder / MODEL)
    (folder / MODEL).unlink()
    weight_map: dict[str, str] = {}
    for number in range(num_shards):
        shard_name = f"model-{number + 1:05d}-of-{num_shards:05d}.safetensors"
        part = dict(list(tensors.items())[number::num_shards])
        save_file(part, folder / shard_name)
        weight_map |= dict.fromkeys(part, shard_name)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / f"{MODEL}.index.json").write_text(json.dumps(index))
    return tensors


# --- Files ------------------------------------------------------------------------------------

NEEDED = (
    "config.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    MODEL,
    "speech_tokenizer/config.json",
    CODEC,
)


@pytest.mark.parametrize("name", NEEDED)
def test_missing_file_raises_with_its_name(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=f"{folder / name} is missing"):
        load(folder)


CUTS = [(name, share) for name in NEEDED for share in (0.0, 0.5, 0.999)]
# A list of merges can only be detected as truncated inside a line.
CUTS = [cut for cut in CUTS if cut not in (("merges.txt", 0.0), ("merges.txt", 0.5))]


@pytest.mark.parametrize(("name", "share"), CUTS)
def test_truncated_file_raises_with_its_name(folder: Path, name: str, share: float) -> None:
    content = (folder / name).read_bytes().rstrip()
    (folder / name).write_bytes(content[: int(share * len(content))])
    with pytest.raises(CheckpointError, match=str(folder / name)):
        load(folder)


@pytest.mark.parametrize("name", NEEDED)
def test_folder_instead_of_a_file_raises_with_its_name(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).mkdir()
    with pytest.raises(CheckpointError, match=str(folder / name)):
        load(folder)


@pytest.mark.parametrize("name", ["preprocessor_config.json", "generation_config.json"])
def test_optional_file_may_be_missing(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert load(folder).model_type == "base"


@pytest.mark.parametrize("name", [MODEL, CODEC])
def test_weights_file_of_other_bytes_is_rejected(folder: Path, name: str) -> None:
    for content in (b"\xff" * 64, b"{}", b"version https://git-lfs.github.com/spec/v1\n"):
        (folder / name).write_bytes(content)
        with pytest.raises(CheckpointError, match=f"{name} is damaged or not safetensors"):
            load(folder)


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize("name", [MODEL, CODEC])
def test_pickle_named_safetensors_is_rejected_unopened(
    folder: Path, tmp_path: Path, name: str, is_zip: bool
) -> None:
    mark = tmp_path / "unpickled"
    torch.save(
        {"w": torch.ones(2), "bomb": Bomb(mark)},
        folder / name,
        _use_new_zipfile_serialization=is_zip,
    )
    with pytest.raises(CheckpointError, match=f"{name} is a pickle, not safetensors"):
        load(folder)
    assert not mark.exists()
    with (folder / name).open("rb") as file:
        torch.load(file, weights_only=False)
    assert mark.exists(), "the bomb should work, or the test shows nothing"


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickle_of_any_binary_protocol_is_detected(folder: Path, protocol: int) -> None:
    (folder / MODEL).write_bytes(pickle.dumps({"w": [1.0] * 100}, protocol=protocol))
    with pytest.raises(CheckpointError, match="is a pickle, not safetensors"):
        load(folder)


def test_truncated_file_whose_header_size_looks_like_a_pickle_is_damaged(folder: Path) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}})
    content = header.ljust(0x0280).encode()
    (folder / MODEL).write_bytes(len(content).to_bytes(8, "little") + content + bytes(8))
    with pytest.raises(CheckpointError, match=r"is damaged or .*before the end of w"):
        load(folder)


def test_checkpoint_with_only_a_pickle_raises_with_advice_to_convert(folder: Path) -> None:
    torch.save(load_file(folder / MODEL), folder / "pytorch_model.bin")
    (folder / MODEL).unlink()
    with pytest.raises(CheckpointError, match=r"missing; pytorch_model\.bin is a pickle, .*never"):
        load(folder)


# --- Configuration ----------------------------------------------------------------------------


def test_25_hz_checkpoint_is_rejected(folder: Path) -> None:
    edit_json(folder / "config.json", "tokenizer_type", value="qwen3_tts_tokenizer_25hz")
    with pytest.raises(CheckpointError, match="qwen3_tts_tokenizer_25hz'; only 12 Hz checkpoints"):
        load(folder)


def test_25_hz_codec_is_rejected(folder: Path) -> None:
    path = folder / "speech_tokenizer" / "config.json"
    edit_json(path, "model_type", value="qwen3_tts_tokenizer_25hz")
    with pytest.raises(CheckpointError, match="only the 12 Hz codec"):
        load(folder)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("config.json", ("tts_pad_token_id",)),
        ("config.json", ("talker_config",)),
        ("config.json", ("talker_config", "hidden_size")),
        ("config.json", ("talker_config", "rope_theta")),
        ("config.json", ("talker_config", "code_predictor_config")),
        ("config.json", ("talker_config", "code_predictor_config", "vocab_size")),
        ("config.json", ("speaker_encoder_config", "enc_dim")),
        ("speech_tokenizer/config.json", ("decode_upsample_rate",)),
        ("speech_tokenizer/config.json", ("decoder_config", "upsample_rates")),
        ("speech_tokenizer/config.json", ("encoder_config",)),
    ],
)
def test_missing_key_raises_with_its_name(folder: Path, name: str, keys: tuple[str, ...]) -> None:
    edit_json(folder / name, *keys)
    with pytest.raises(CheckpointError, match=f"{name}.*'{keys[-1]}'"):
        load(folder)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("talker_config", "hidden_size"), "32"),
        (("talker_config", "hidden_size"), None),
        (("talker_config", "hidden_size"), 32.0),
        (("talker_config", "num_hidden_layers"), True),
        (("talker_config", "rms_norm_eps"), "small"),
        (("talker_config", "codec_language_id"), None),
        (("talker_config", "spk_id"), [1, 2]),
        (("talker_config", "spk_id"), {"ada": "3000"}),
        (("talker_config",), [1]),
        (("tts_bos_token_id",), "<tts_text_bos>"),
        (("tts_model_type",), "karaoke"),
        (("tts_model_type",), None),
    ],
)
def test_value_of_the_wrong_type_raises_with_its_name(
    folder: Path, keys: tuple[str, ...], value: Any
) -> None:
    edit_json(folder / "config.json", *keys, value=value)
    with pytest.raises(CheckpointError, match=rf"config\.json.*{keys[-1]}"):
        load(folder)


@pytest.mark.parametrize(
    ("keys", "value", "match"),
    [
        (("talker_config", "spk_id"), {"ada": 1088}, "spk_id 'ada' is 1088; .*0 to 1087"),
        (("talker_config", "codec_language_id"), {"x": -1}, "codec_language_id 'x' is -1"),
        (("talker_config", "codec_eos_token_id"), 5000, "codec_eos_token_id is 5000"),
        (("tts_pad_token_id",), 384, "tts_pad_token_id is 384; .*0 to 383"),
    ],
)
def test_id_outside_its_table_raises_with_its_name(
    folder: Path, keys: tuple[str, ...], value: Any, match: str
) -> None:
    edit_json(folder / "config.json", *keys, value=value)
    with pytest.raises(CheckpointError, match=match):
        load(folder)


def test_talker_and_codec_with_different_codes_are_rejected(folder: Path) -> None:
    path = folder / "speech_tokenizer" / "config.json"
    edit_json(path, "encoder_valid_num_quantizers", value=8)
    with pytest.raises(CheckpointError, match=r"num_code_groups 16, .*valid_num_quantizers 8"):
        load(folder)
    edit_json(path, "encoder_valid_num_quantizers", value=16)
    edit_json(path, "decoder_config", "codebook_size", value=32)
    with pytest.raises(CheckpointError, match=r"predictor vocab_size 64, .*codebook_size 32"):
        load(folder)


def test_codec_without_trained_encoder_is_accepted_and_refuses_audio(folder: Path) -> None:
    path = folder / "speech_tokenizer" / "config.json"
    edit_json(path, "encoder_valid_num_quantizers", value=0)
    tts = load(folder)
    noise = np.random.default_rng(1).normal(0, 0.1, 24_000).astype(np.float32)
    assert not tts.clone((noise, 24_000)).is_in_context
    with pytest.raises(UnsupportedRequestError, match=r"context; leave the transcript out.*Base"):
        tts.clone((noise, 24_000), "Words.")
    with pytest.raises(UnsupportedRequestError, match="cannot convert audio to codes"):
        tts.codec.encode(torch.from_numpy(noise))
    edit_json(path, "encoder_valid_num_quantizers", value=-1)
    with pytest.raises(CheckpointError, match=r"num_code_groups 16, .*valid_num_quantizers -1"):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"has_speaker_encoder": "yes"}, "has_speaker_encoder must be true or false"),
        (
            {"tts_model_type": "voice_design"},
            "has_speaker_encoder is not supported for a voice",
        ),
        ({"speaker_encoder_config": None}, "has_speaker_encoder needs the section"),
        ({"speaker_encoder_config": []}, "speaker_encoder_config' is missing"),
    ],
)
def test_speaker_encoder_flag_is_checked(folder: Path, changes: Any, match: str) -> None:
    raw = json.loads((folder / "config.json").read_text())
    raw |= {"tts_model_type": "custom_voice", "has_speaker_encoder": True}
    assert parse_model_config(raw).can_clone
    with pytest.raises(CheckpointError, match=match):
        parse_model_config(raw | changes)


def test_speaker_encoder_section_without_flag_is_ignored(folder: Path) -> None:
    raw = json.loads((folder / "config.json").read_text()) | {"tts_model_type": "custom_voice"}
    for flag in ({}, {"has_speaker_encoder": False}):
        assert not parse_model_config(raw | flag).can_clone


def test_speaker_encoder_of_other_width_is_rejected(folder: Path) -> None:
    edit_json(folder / "config.json", "speaker_encoder_config", "enc_dim", value=48)
    with pytest.raises(CheckpointError, match=r"the tensors show 32 \(speaker_encoder\.fc\.weight"):
        load(folder)
    tensors = load_file(folder / "model.safetensors")
    for name in ("speaker_encoder.fc.weight", "speaker_encoder.fc.bias"):
        tensors[name] = torch.cat([tensors[name], tensors[name][:16]])
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"enc_dim is 48, and the hidden_size of the talker"):
        load(folder)


def test_sample_rate_of_zero_raises_with_its_name(folder: Path) -> None:
    edit_json(folder / "speech_tokenizer" / "config.json", "output_sample_rate", value=0)
    with pytest.raises(CheckpointError, match=r"speech_tokenizer/config\.json: output_sample_rate"):
        load(folder)


@pytest.mark.parametrize("content", ["", "{", "[1]", '"words"', "\x00", '{"a": 1'])
def test_config_that_is_not_an_object_is_rejected(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load(folder)


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


def test_error_lists_five_names_and_counts_the_others(folder: Path) -> None:
    extra = {f"extra.{number}": torch.ones(1) for number in range(8)}
    edit_tensors(folder / MODEL, lambda tensors: tensors.update(extra))
    with pytest.raises(CheckpointError, match=r"extra\.0, .*extra\.4 and 3 more$"):
        load(folder)


@pytest.mark.parametrize(("path", "name"), [(MODEL, NORM), (CODEC, "decoder.pre_conv.conv.bias")])
def test_mis_shaped_tensor_raises_with_both_shapes(folder: Path, path: str, name: str) -> None:
    width = len(load_file(folder / path)[name])
    edit_tensors(folder / path, lambda tensors: tensors.update({name: torch.ones(width + 1)}))
    expected = rf"{name} has shape \[{width + 1}\]; config\.json requires \[{width}\]"
    with pytest.raises(CheckpointError, match=expected):
        load(folder)


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


# --- Sampling defaults ------------------------------------------------------------------------


def test_missing_generation_config_gives_the_official_defaults(tmp_path: Path) -> None:
    assert read_sampling(tmp_path / "generation_config.json") == SamplingParams(
        temperature=0.9,
        top_k=50,
        top_p=1.0,
        repetition_penalty=1.05,
        predictor_temperature=0.9,
        predictor_top_k=50,
        predictor_top_p=1.0,
        max_frames=2047,
    )


def test_generation_config_sets_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "generation_config.json"
    path.write_text(
        json.dumps(
            {
                "temperature": 0.7,
                "top_k": 20,
                "top_p": 0.8,
                "repetition_penalty": 1.1,
                "subtalker_temperature": 0.6,
                "subtalker_top_k": 10,
                "subtalker_top_p": 0.5,
                "max_new_tokens": 100,
                "transformers_version": "4.57.3",
            }
        )
    )
    assert read_sampling(path) == SamplingParams(
        temperature=0.7,
        top_k=20,
        top_p=0.8,
        repetition_penalty=1.1,
        predictor_temperature=0.6,
        predictor_top_k=10,
        predictor_top_p=0.5,
        max_frames=99,
    )


def test_talker_and_predictor_are_greedy_independently(tmp_path: Path) -> None:
    path = tmp_path / "generation_config.json"
    path.write_text('{"do_sample": false}')
    params = read_sampling(path)
    assert (params.temperature, params.residual_temperature) == (0.0, 0.9)
    path.write_text('{"subtalker_dosample": false}')
    params = read_sampling(path)
    assert (params.temperature, params.residual_temperature) == (0.9, 0.0)


def test_null_in_the_generation_config_is_the_default(tmp_path: Path) -> None:
    path = tmp_path / "generation_config.json"
    path.write_text('{"top_k": null, "max_new_tokens": null, "temperature": null}')
    assert read_sampling(path) == read_sampling(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ('{"temperature": -1}', r"temperature must be 0 \(greedy\) or from"),
        ('{"temperature": NaN}', r"temperature must be 0 \(greedy\) or from"),
        ('{"top_k": "many"}', "top_k must be a whole number"),
        ('{"max_new_tokens": "8192"}', "max_new_tokens must be 2 or more, not '8192'"),
        ('{"max_new_tokens": 1}', "max_new_tokens must be 2 or more, not 1"),
        (f'{{"max_new_tokens": {10**30}}}', "max_new_tokens must be at most 2147483647, not 1000"),
        ("[]", "should hold a JSON object"),
    ],
)
def test_invalid_generation_config_raises_checkpoint_error(
    folder: Path, content: str, match: str
) -> None:
    (folder / "generation_config.json").write_text(content)
    with pytest.raises(CheckpointError, match=rf"generation_config\.json.*{match}"):
        load(folder)


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


# --- Names ------------------------------------------------------------------------------------


def test_hub_id_is_downloaded_with_the_given_arguments(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []

    def download(name: str, **options: Any) -> str:
        calls.append((name, options))
        return str(tiny_folder / "custom_voice")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    tts = TTS.load(
        "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice",
        device="cpu",
        revision="85e237c",
        cache_dir=tmp_path,
        offline=True,
    )
    assert tts.model_type == "custom_voice"
    name, options = calls.pop()
    assert name == "Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice"
    patterns = options.pop("allow_patterns")
    assert options == {"revision": "85e237c", "cache_dir": tmp_path, "local_files_only": True}
    assert set(patterns) == {"*.json", "*.txt", "*.safetensors"}  # and no pickle


def test_folder_is_never_looked_up_on_the_hub(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("hub"))
    monkeypatch.chdir(tiny_folder.parent)
    name = f"{tiny_folder.name}/base"  # has the form of a hub id
    assert TTS.load(name, device="cpu").checkpoint.folder == Path(name)


def test_download_logs_the_commit(
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    snapshot = tmp_path / "snapshots" / "85e237c12c02"
    shutil.copytree(tiny_folder / "custom_voice", snapshot)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(snapshot))
    with caplog.at_level("INFO", "vivace"):
        find_folder(RELEASED[1], revision=None, cache_dir=None, offline=False)
    assert f"{RELEASED[1]} is commit 85e237c12c02" in caplog.text


@pytest.mark.parametrize("lacking", ["merges.txt", MODEL, CODEC])
def test_incomplete_download_raises_with_the_missing_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    (folder / lacking).unlink()
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(folder))
    with pytest.raises(CheckpointError, match=f"lacks {lacking}; load it once with a connection"):
        find_folder(RELEASED[0], revision=None, cache_dir=None, offline=True)


def test_incomplete_shards_raise_with_the_missing_shard(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard(folder)
    (folder / "model-00002-of-00003.safetensors").unlink()
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(folder))
    with pytest.raises(CheckpointError, match=r"lacks model-00002-of-00003\.safetensors; is it"):
        find_folder(RELEASED[0], revision=None, cache_dir=None, offline=False)


def test_offline_load_without_cache_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as refusal:
        TTS.load(RELEASED[0], device="cpu", cache_dir=tmp_path, offline=True)
    assert RELEASED[0] in str(refusal.value)
    assert "offline mode is on" in str(refusal.value)


@pytest.mark.parametrize(
    ("failure", "match"),
    [
        ("LocalEntryNotFoundError", "the hub could not be reached"),
        (
            "RepositoryNotFoundError",
            "no folder or hub model is named .*; the released ones are: .*0.6B",
        ),
        ("RevisionNotFoundError", "could not be downloaded"),
        ("OSError", "could not be downloaded: no space left"),
    ],
)
def test_failed_download_raises_checkpoint_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str, match: str
) -> None:
    from huggingface_hub import errors

    kind: type[Exception] = getattr(errors, failure, OSError)

    def fail(*_: Any, **__: Any) -> str:
        error = kind.__new__(kind)  # the constructors of hub errors need a web response
        Exception.__init__(error, "no space left")
        raise error

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(CheckpointError, match=match):
        find_folder("org/model", revision=None, cache_dir=tmp_path, offline=False)


@pytest.mark.parametrize(
    "name",
    ["", "nowhere", "./org/model", "/no/such/folder", "~nobody-at-all/model", "a/b/c", "x" * 5000],
)
def test_name_that_is_neither_folder_nor_hub_id_is_rejected(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("hub"))
    with pytest.raises(
        CheckpointError, match=r"no folder .*give a checkpoint folder or a model such as"
    ):
        TTS.load(name, device="cpu")


def test_mini_is_the_embedded_voice_unless_a_folder_has_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options: dict[str, Any] = {"revision": None, "cache_dir": None, "offline": True}
    assert find_folder("mini", **options) == EMBEDDED
    Path("mini").mkdir()
    assert find_folder("mini", **options) == Path("mini")


def test_file_instead_of_a_folder_is_rejected(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny_folder)
    for name in (tiny_folder / "base" / MODEL, "base/model.safetensors"):
        with pytest.raises(CheckpointError, match="is a file; give the checkpoint folder"):
            TTS.load(name, device="cpu")


def test_home_folder_is_expanded(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tiny_folder))
    found = find_folder("~/base", revision=None, cache_dir=None, offline=True)
    assert found == tiny_folder / "base"


# -- Text settings of the checkpoint -----------------------------------------------------------


def test_reading_config_of_a_checkpoint_is_read(tiny_folder: Path) -> None:
    raw = json.loads((tiny_folder / "base" / "config.json").read_text(encoding="utf-8"))
    assert parse_model_config(raw).reading_config == ReadingConfig()
    raw["reading_config"] = {"normalize": True, "max_utterance_chars": 90, "seam_s": 1}
    assert parse_model_config(raw).reading_config == ReadingConfig(
        normalize=True, max_utterance_chars=90, seam_s=1
    )


@pytest.mark.parametrize(
    "reading",
    [
        [],
        {"normalize": 1},
        {"strip_end": 1},
        {"plain_breaks": 1},
        {"plain_ellipsis": 1},
        {"plain_quotes": 1},
        {"end_stop": 1},
        {"min_utterance_chars": -1},
        {"paragraph_s": 0},
        {"paragraph_s": 11},
        {"max_utterance_chars": 3},
        {"max_utterance_chars": 10**9},
        {"max_utterance_chars": 90.0},
        {"seam_s": 0},
        {"seam_s": 11},
        {"seam_s": "1"},
        {"silence_rms": -1e-4},
        {"silence_rms": 0.02},
    ],
)
def test_invalid_reading_config_is_rejected(tiny_folder: Path, reading: object) -> None:
    raw = json.loads((tiny_folder / "base" / "config.json").read_text(encoding="utf-8"))
    with pytest.raises(
        CheckpointError,
        match=r"reading_config|normalize|strip|utterance|seam|silence|breaks|paragraph|ellipsis|quotes|stop",
    ):
        parse_model_config({**raw, "reading_config": reading})
