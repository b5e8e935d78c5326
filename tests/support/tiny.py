"""Tiny checkpoints in the released layout, loaded in float32 on the CPU."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from torch import nn

from vivace.backends.cpu.backend import CpuBackend
from vivace.backends.cpu.build import find_refusal
from vivace.backends.eager import EagerBackend
from vivace.checkpoint import Checkpoint
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

    def cpu_backend(self, num_threads: int = 1, instruction_set: str = "") -> CpuBackend:
        """Skips the test where the C++ library cannot be built."""
        refusal = find_refusal()
        if refusal is not None:
            pytest.skip(refusal)
        return CpuBackend(
            self.model, self.codec, num_threads=num_threads, instruction_set=instruction_set
        )
