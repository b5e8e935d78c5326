"""Missing and invalid values of config.json raise CheckpointError."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.checkpoints import edit_json, load
from vivace.errors import CheckpointError, UnsupportedRequestError
from vivace.model.config import ReadingConfig
from vivace.model.config_file import parse_model_config

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
        (("talker_config", "spk_id"), {"ada": True}, "spk_id 'ada' is True; .*0 to 1087"),
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
    with pytest.raises(CheckpointError, match=r"num_code_groups 4, .*valid_num_quantizers 8"):
        load(folder)
    edit_json(path, "encoder_valid_num_quantizers", value=4)
    edit_json(path, "decoder_config", "codebook_size", value=32)
    with pytest.raises(CheckpointError, match=r"predictor vocab_size 64, .*codebook_size 32"):
        load(folder)
    edit_json(path, "decoder_config", "codebook_size", value=64)
    edit_json(path, "encoder_config", "codebook_size", value=32)
    with pytest.raises(CheckpointError, match=r"codec encoder codebook_size 32$"):
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
    with pytest.raises(CheckpointError, match=r"num_code_groups 4, .*valid_num_quantizers -1"):
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


def test_number_of_many_digits_is_not_repeated_in_the_error(folder: Path) -> None:
    edit_json(folder / "config.json", "talker_config", "max_position_embeddings", value=10**999)
    with pytest.raises(CheckpointError, match=r"number 10{99}… has 1,000 digits"):
        load(folder)


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
