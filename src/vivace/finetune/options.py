"""The options of `vivace finetune`, each declared once: data and training."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from vivace.errors import TrainingDataError

Embeddings = Literal["none", "codes", "all"]
TARGETS = ("attention", "mlp", "predictor", "text", "heads")
LARGE = 1_000_000  # limits from here are written with all digits
DEFAULT_TARGETS = ("attention", "mlp", "predictor", "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """Which recordings are used, and how they are prepared."""

    language: Annotated[str, "Language of recordings that do not state one."] = "auto"
    min_seconds: Annotated[float, "Shortest recording, after silence is trimmed."] = 0.6
    max_seconds: Annotated[float, "Longest recording, after silence is trimmed."] = 30.0
    min_sample_rate: Annotated[int, "Lowest sample rate in Hz; lower ones sound muffled."] = 16_000
    loudness: Annotated[float, "Loudness of every recording in LUFS, -40 to -10."] = -23.0
    max_word_errors: Annotated[
        float, "Highest word error rate of a transcript, with the extra quality."
    ] = 0.5
    check_transcripts: Annotated[
        bool | None, "Compare transcripts with a recogniser; None: if it is installed."
    ] = None
    held_out: Annotated[float, "Share of recordings that are held out for judging."] = 0.05

    def __post_init__(self) -> None:
        _check_range(self, "min_seconds", 0.2, 60.0)
        _check_range(self, "max_seconds", self.min_seconds, 60.0)
        _check_range(self, "min_sample_rate", 8_000, 192_000)
        _check_range(self, "loudness", -40.0, -10.0)
        _check_range(self, "max_word_errors", 0.0, 10.0)
        _check_range(self, "held_out", 0.001, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """The trained weights and the parameters of the training."""

    full: Annotated[bool, "Train all weights instead of an adapter."] = False
    rank: Annotated[int, "Rank of the adapter's matrices."] = 16
    alpha: Annotated[float, "Scale of the adapter: alpha / rank."] = 32.0
    targets: Annotated[
        tuple[str, ...], f"Parts that the adapter changes: {', '.join(TARGETS)}."
    ] = DEFAULT_TARGETS
    embeddings: Annotated[
        Embeddings, "Embeddings to train as a whole: `none`, `codes` or `all` (text too)."
    ] = "none"
    epochs: Annotated[int, "Passes over the recordings."] = 10
    learning_rate: Annotated[float, "Highest learning rate, after the warm-up."] = 2e-4
    warmup: Annotated[float, "Share of the steps in which the learning rate rises."] = 0.05
    weight_decay: Annotated[float, "Weight decay of AdamW."] = 0.01
    clip: Annotated[float, "Highest norm of the gradient."] = 1.0
    rows_per_batch: Annotated[int, "Rows (text and frames) that are computed at once."] = 2_048
    rows_per_step: Annotated[int, "Rows of one step of the optimizer; 0: one batch."] = 2_048
    residual_weight: Annotated[float, "Weight of codebooks 1 and up in the loss."] = 0.3
    streamed: Annotated[float, "Share of examples whose text is streamed."] = 0.3
    any_language: Annotated[float, "Share of examples with the language left open."] = 0.15
    recompute: Annotated[bool, "Recompute activations in backward, which saves memory."] = True
    seed: Annotated[int, "Order of examples and initial values."] = 0

    def __post_init__(self) -> None:
        _check_range(self, "rank", 1, 1_024)
        _check_range(self, "alpha", 1e-3, 1e4)
        _check_range(self, "epochs", 1, 10_000)
        _check_range(self, "learning_rate", 1e-8, 1.0)
        _check_range(self, "warmup", 0.0, 0.9)
        _check_range(self, "weight_decay", 0.0, 1.0)
        _check_range(self, "clip", 1e-6, 1e6)
        _check_range(self, "rows_per_batch", 64, 10**6)
        _check_range(self, "rows_per_step", 0, 10**8)
        _check_range(self, "residual_weight", 0.0, 100.0)
        _check_range(self, "streamed", 0.0, 1.0)
        _check_range(self, "any_language", 0.0, 1.0)
        _check_range(self, "seed", 0, 2**63 - 1)
        if unknown := set(self.targets) - set(TARGETS) or not self.targets:
            names = ", ".join(sorted(unknown)) if isinstance(unknown, set) else "none"
            raise TrainingDataError(
                f"--targets must be one or more of {', '.join(TARGETS)}, not {names}"
            )


def fingerprint(*options: DataOptions | TrainOptions) -> str:
    """A digest of all values."""
    values = [dataclasses.asdict(one) for one in options]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _check_range(options: Any, name: str, low: float, high: float) -> None:
    value = getattr(options, name)
    if isinstance(value, bool) or not low <= value <= high:  # NaN fails too
        flag = name.replace("_", "-")
        most = f"{high:,}" if high >= LARGE else f"{high:g}"
        raise TrainingDataError(f"--{flag} must be from {low:g} to {most}, not {value}")
