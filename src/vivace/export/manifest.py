"""Writes manifest.json of an export: the facts that a program needs beside the graphs."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from vivace._version import __version__
from vivace.checkpoint import EMBEDDED, Checkpoint
from vivace.export.graph import StoredWeights
from vivace.model.config import NO_CODE, SPEAKER
from vivace.prompt import build_prompt
from vivace.speech import AUTO_LANGUAGE
from vivace.text.tokenizer import TextTokenizer

FORMAT = "vivace-onnx"
FORMAT_VERSION = 1
TYPE_NAMES = {TensorProto.FLOAT: "float32", TensorProto.INT32: "int32", TensorProto.BOOL: "bool"}
EMBEDDED_LICENSE = "Apache-2.0"
MARKING = (
    "The graphs make synthetic speech and put no mark into its samples. A program that publishes "
    "the speech must label it as made by AI."
)


def describe(
    checkpoint: Checkpoint,
    tokenizer: TextTokenizer,
    weights: StoredWeights,
    graphs: Mapping[str, onnx.ModelProto],
    first_codes: Sequence[int],
) -> dict[str, Any]:
    """All of the manifest but `files`."""
    config, codec = checkpoint.config, checkpoint.codec_config
    talker = config.talker_config
    sampling = dataclasses.asdict(checkpoint.sampling)
    sampling["predictor_temperature"] = checkpoint.sampling.residual_temperature
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "vivace": __version__,
        "weights": weights,
        "model_type": config.tts_model_type,
        "sample_rate": codec.output_sample_rate,
        "samples_per_frame": codec.decode_upsample_rate,
        "num_codebooks": talker.num_code_groups,
        "codebook_size": talker.code_predictor_config.vocab_size,
        "first_codes": list(first_codes),
        "end_code": talker.codec_eos_token_id,
        "max_rows": talker.max_position_embeddings,
        "sampling": {name: value for name, value in sampling.items() if name != "seed"},
        "prompt": _prompts(checkpoint, tokenizer),
        "reading": dataclasses.asdict(config.reading_config),
        "graphs": {name: _interface(graph) for name, graph in graphs.items()},
        "license": EMBEDDED_LICENSE if checkpoint.folder == EMBEDDED else None,
        "marking": MARKING,
    }


def file_facts(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _interface(model: onnx.ModelProto) -> dict[str, Any]:
    return {
        "inputs": [_value(each) for each in model.graph.input],
        "outputs": [_value(each) for each in model.graph.output],
    }


def _value(info: onnx.ValueInfoProto) -> dict[str, Any]:
    kind = info.type.tensor_type
    shape = [size.dim_param or size.dim_value for size in kind.shape.dim]
    return {"name": info.name, "type": TYPE_NAMES[kind.elem_type], "shape": shape}


def _prompts(checkpoint: Checkpoint, tokenizer: TextTokenizer) -> dict[str, Any]:
    config, talker = checkpoint.config, checkpoint.config.talker_config
    voices: dict[str, str | None] = {name: name for name in talker.spk_id}
    if config.tts_model_type != "custom_voice":
        voices = {"": None}
    languages = [AUTO_LANGUAGE, *talker.codec_language_id]
    return {
        "layout": "streamed" if config.tts_model_type == "base" else "whole",
        "before_text": {
            name: {
                language: _rows_before_text(checkpoint, tokenizer, preset, language)
                for language in languages
            }
            for name, preset in voices.items()
        },
        "text_code": talker.codec_pad_id,
        "speech_code": talker.codec_bos_id,
        "end_id": config.tts_eos_token_id,
        "pad_id": config.tts_pad_token_id,
        "no_code": NO_CODE,
        "speaker_code": SPEAKER,
    }


def _rows_before_text(
    checkpoint: Checkpoint, tokenizer: TextTokenizer, preset: str | None, language: str
) -> list[list[int]]:
    """[text id, code of codebook 0] of each row; the other codebooks have no code."""
    config = checkpoint.config
    speaker = None
    if config.tts_model_type == "base":
        speaker = np.zeros(config.talker_config.hidden_size, np.float32)
    prompt = build_prompt(
        config,
        [0],
        role_ids=tokenizer.role_ids("assistant"),
        layout="whole",
        language=language,
        preset=preset,
        speaker=speaker,
    )
    rows = zip(prompt.text_ids, prompt.codes[:, 0].tolist(), strict=True)
    return [[text, code] for text, code in rows][: prompt.num_shared_rows]
