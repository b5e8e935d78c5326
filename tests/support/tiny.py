"""Tiny checkpoints in the released layout, loaded in float32 on the CPU."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from vivace.backends.cpu.backend import CpuBackend
from vivace.backends.cpu.build import find_refusal
from vivace.backends.eager import EagerBackend
from vivace.checkpoint import Checkpoint
from vivace.checkpoint_files import SPEAKER_ENCODER
from vivace.model.codec import Codec
from vivace.model.layers import Block
from vivace.model.talker import Qwen3TTS
from vivace.text.tokenizer import TextTokenizer

TINY_NAMES = (
    "custom_voice",
    "custom_voice_projected",
    "voice_design",
    "base",
    "base_projected",
)


def join_checkpoints(source: Path, folder: Path) -> None:
    """Write a custom_voice checkpoint with the speaker encoder of a Base one.

    Its codec has no trained encoder.
    """
    shutil.copytree(source / "custom_voice", folder, dirs_exist_ok=True)
    weights = load_file(folder / "model.safetensors")
    base = load_file(source / "base" / "model.safetensors")
    weights |= {name: base[name] for name in base if name.startswith(SPEAKER_ENCODER)}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    section = json.loads((source / "base" / "config.json").read_text())["speaker_encoder_config"]
    flags = {"has_speaker_encoder": True, "speaker_encoder_config": section}
    _add_fields(folder / "config.json", flags)
    _add_fields(folder / "speech_tokenizer/config.json", {"encoder_valid_num_quantizers": 0})


NUM_FEW = 4  # codebooks


def drop_codebooks(source: Path, folder: Path) -> None:
    """Write a checkpoint with the first `NUM_FEW` of 16 codebooks, for quicker frames."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    talker = json.loads((folder / "config.json").read_text())["talker_config"]
    talker["num_code_groups"] = talker["code_predictor_config"]["num_code_groups"] = NUM_FEW
    _add_fields(folder / "config.json", {"talker_config": talker})
    codec_config = folder / "speech_tokenizer/config.json"
    decoder = json.loads(codec_config.read_text())["decoder_config"] | {"num_quantizers": NUM_FEW}
    _add_fields(codec_config, {"decoder_config": decoder, "encoder_valid_num_quantizers": NUM_FEW})
    for path in (folder / "model.safetensors", folder / "speech_tokenizer/model.safetensors"):
        weights = load_file(path)
        kept = {name: weights[name] for name in weights if not _is_later_codebook(name)}
        save_file(kept, path, {"format": "pt"})


def _is_later_codebook(name: str) -> bool:
    is_list = re.search(r"\.(?:lm_head|codec_embedding|rvq_rest\.vq\.layers)\.(\d+)\.", name)
    return is_list is not None and int(is_list[1]) >= NUM_FEW - 1


def _add_fields(path: Path, fields: dict[str, Any]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def block_of(layers: nn.ModuleList, index: int) -> Block:
    """A layer of the talker or of the predictor."""
    block = layers[index]
    assert isinstance(block, Block)
    return block


@dataclass(frozen=True)
class Tiny:
    """One tiny checkpoint and its parts."""

    checkpoint: Checkpoint
    tokenizer: TextTokenizer
    model: Qwen3TTS
    codec: Codec

    def backend(self, pass_rows: int | None = None) -> EagerBackend:
        return EagerBackend(self.model, self.codec, pass_rows=pass_rows)

    def cpu_backend(
        self,
        num_threads: int = 1,
        instruction_set: str = "",
        has_half_cache: bool | None = None,
    ) -> CpuBackend:
        """Skips the test where the C++ library cannot be built."""
        refusal = find_refusal()
        if refusal is not None:
            pytest.skip(refusal)
        return CpuBackend(
            self.model,
            self.codec,
            num_threads=num_threads,
            instruction_set=instruction_set,
            has_half_cache=has_half_cache,
        )


def load_tiny(folder: Path) -> Tiny:
    checkpoint, cpu = Checkpoint.open(folder), torch.device("cpu")
    return Tiny(
        checkpoint=checkpoint,
        tokenizer=TextTokenizer.from_folder(checkpoint.folder),
        model=checkpoint.load_model(cpu, torch.float32),
        codec=checkpoint.load_codec(cpu),
    )
