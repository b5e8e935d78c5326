"""Reads config.json of a checkpoint and of its codec, and checks every value."""

from __future__ import annotations

import dataclasses
import math
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import Any, TypeVar

from vivace.checkpoint_files import read_json
from vivace.errors import CheckpointError
from vivace.model.config import (
    MODEL_TYPES,
    CodecConfig,
    CodecDecoderConfig,
    CodecEncoderConfig,
    GatedConfig,
    ModelConfig,
    PredictorConfig,
    QuantizationConfig,
    ReadingConfig,
    SpeakerEncoderConfig,
    TalkerConfig,
    TimingConfig,
)

T = TypeVar("T")

SPEAKER_FLAG = "has_speaker_encoder"  # of a custom_voice checkpoint that also clones
SPEAKER_SECTION = "speaker_encoder_config"

SAMPLE_RATES = (4_000, 192_000)  # Hz; below, a window of 10 ms has too few samples to measure
# Limits of numbers that no tensor shape confirms: integers that cost memory or time, and floats
# that give infinities.
LIMITS: dict[str, tuple[float, float]] = {
    "max_position_embeddings": (1, 2**20),
    "sliding_window": (1, 2**16),
    "input_sample_rate": SAMPLE_RATES,
    "output_sample_rate": SAMPLE_RATES,
    "sample_rate": SAMPLE_RATES,
    "decode_upsample_rate": (1, 10**6),
    "encode_downsample_rate": (1, 10**6),
    "encoder_delay": (0, 64),
    "dilation_growth_rate": (1, 64),
    "enc_dilations": (1, 64),
    "max_utterance_chars": (20, 10_000),
    "rope_theta": (1.0, 1e12),
    "rms_norm_eps": (1e-12, 1.0),
    "norm_eps": (1e-12, 1.0),
}
SECTIONS: dict[str, type[Any]] = {
    "talker_config": TalkerConfig,
    "code_predictor_config": PredictorConfig,
    SPEAKER_SECTION: SpeakerEncoderConfig,
    "reading_config": ReadingConfig,
    "timing_config": TimingConfig,
    "quantization_config": QuantizationConfig,
    "decoder_config": CodecDecoderConfig,
    "encoder_config": CodecEncoderConfig,
}


def load_model_config(path: Path) -> ModelConfig:
    raw = read_json(path)
    tokenizer_type = raw.get("tokenizer_type")
    if tokenizer_type != "qwen3_tts_tokenizer_12hz":
        raise CheckpointError(
            f"{path}: tokenizer_type is {tokenizer_type!r}; "
            "only 12 Hz checkpoints (qwen3_tts_tokenizer_12hz) can be loaded"
        )
    if raw.get("tts_model_type") not in MODEL_TYPES:
        raise CheckpointError(
            f"{path}: tts_model_type is {raw.get('tts_model_type')!r}; "
            f"expected one of {', '.join(MODEL_TYPES)}"
        )
    return parse_model_config(raw, str(path))


def load_codec_config(path: Path) -> CodecConfig:
    raw = read_json(path)
    if raw.get("model_type") != "qwen3_tts_tokenizer_12hz":
        raise CheckpointError(
            f"{path}: model_type is {raw.get('model_type')!r}; "
            "only the 12 Hz codec (qwen3_tts_tokenizer_12hz) can be loaded"
        )
    return parse_codec_config(raw, str(path))


def parse_model_config(raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    if not _has_speaker_encoder(raw, where):
        raw = {name: value for name, value in raw.items() if name != SPEAKER_SECTION}
    elif raw.get("tts_model_type") != "base" and raw.get(SPEAKER_SECTION) is None:
        raise CheckpointError(f"{where}: {SPEAKER_FLAG} needs the section {SPEAKER_SECTION!r}")
    return _build(ModelConfig, raw, where)


def _has_speaker_encoder(raw: Mapping[str, Any], where: str) -> bool:
    """Base checkpoints have one, and custom_voice checkpoints with the flag.

    The section alone proves nothing: other released checkpoints may contain it without weights.
    """
    is_flagged = raw.get(SPEAKER_FLAG, False)
    _check(SPEAKER_FLAG, "bool", is_flagged, where)
    if is_flagged and raw.get("tts_model_type") == "voice_design":
        raise CheckpointError(
            f"{where}: {SPEAKER_FLAG} is not supported for a voice_design checkpoint"
        )
    return raw.get("tts_model_type") == "base" or bool(is_flagged)


def parse_codec_config(raw: Mapping[str, Any], where: str = "config.json") -> CodecConfig:
    return _build(CodecConfig, raw, where)


def _build(cls: type[T], raw: Mapping[str, Any], where: str) -> T:
    """Build a config from its section, including nested sections."""
    if issubclass(cls, GatedConfig) and raw.get("hidden_act", "silu") != "silu":
        raise CheckpointError(
            f"{where}: hidden_act is {raw['hidden_act']!r}; only silu is implemented"
        )
    values: dict[str, Any] = {}
    for item in dataclasses.fields(cls):  # type: ignore[arg-type]
        name, value = item.name, raw.get(item.name)
        has_default = (item.default, item.default_factory) != (MISSING, MISSING)
        if name in SECTIONS:
            if value is None and has_default:
                continue
            if not isinstance(value, dict):
                raise CheckpointError(f"{where}: the section {name!r} is missing")
            values[name] = _build(SECTIONS[name], value, where)
        elif name in raw:
            values[name] = tuple(value) if isinstance(value, list) else value
            _check(name, str(item.type), values[name], where)
        elif not has_default:
            raise CheckpointError(f"{where}: {cls.__name__} needs the key {name!r}")
    return cls(**values)


# By annotation: whether a value of JSON has the type, and the name of the type in errors.
JSON_TYPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "bool": (lambda value: isinstance(value, bool), "true or false"),
    "int": (lambda value: type(value) is int, "a number"),
    "float": (
        lambda value: type(value) in (int, float) and 0 < value < math.inf,
        "a number above 0",
    ),
    "tuple[int, ...]": (
        lambda value: isinstance(value, tuple) and {type(each) for each in value} == {int},
        "a list of numbers",
    ),
    "Mapping": (lambda value: isinstance(value, Mapping), "an object"),
    "str": (lambda value: isinstance(value, str), "a string"),
}


def _check(name: str, annotation: str, value: Any, where: str) -> None:
    kind = "Mapping" if annotation.startswith("Mapping") else annotation
    has_type, type_name = JSON_TYPES.get(kind, JSON_TYPES["str"])
    if not has_type(value):
        raise CheckpointError(f"{where}: {name} must be {type_name}, not {reprlib.repr(value)}")
    if name in LIMITS:
        low, high = LIMITS[name]
        for number in value if isinstance(value, tuple) else (value,):
            if not low <= number <= high:
                raise CheckpointError(
                    f"{where}: {name} is {number}; it must be from {low:,} to {high:,}"
                )
