"""Quantized checkpoints of tests."""

from __future__ import annotations

from pathlib import Path

from vivace.checkpoint import Checkpoint
from vivace.model.config import IntWeights
from vivace.quantize import quantize_checkpoint


def write_quantized(source: Path, target: Path, weights: IntWeights) -> Path:
    quantize_checkpoint(Checkpoint.open(source), target, weights)
    return target
