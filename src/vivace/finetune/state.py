"""The state of a run on disk: its progress, its judged epochs and the trainer's tensors.

The file is replaced atomically. A killed run continues from the last one.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as pack_tensors
from torch import Tensor

from vivace.errors import TrainingDataError
from vivace.finetune.files import write_file

FORMAT = "vivace.finetune/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One epoch on the held-out recordings."""

    epoch: int  # 0: before training
    losses: list[float]  # mean cross entropy of each codebook
    total: float  # the loss that training minimises
    train_losses: list[float] = field(default_factory=list)  # mean over the epoch
    seconds: float = 0.0
    word_errors: float | None = None  # of generated speech, per word
    likeness: float | None = None  # cosine with the speaker's vector
    speaking_rate: float | None = None  # relative to the recordings
    runaways: int | None = None
    samples: list[str] = field(default_factory=list)  # files of generated speech


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The position of a run. `settings` identifies the data and the options."""

    settings: str
    epoch: int = 0  # the epoch that is trained, from 0
    step: int = 0  # steps done in this epoch
    num_steps: int = 0  # in all
    best_epoch: int = 0
    best_total: float = float("inf")
    seconds: float = 0.0  # of training so far
    epoch_losses: list[list[float]] = field(default_factory=list)  # of the steps of this epoch
    history: list[Judgement] = field(default_factory=list)

    def save(self, path: Path, tensors: dict[str, Tensor]) -> None:
        text = json.dumps(dataclasses.asdict(self))
        write_file(path, pack_tensors(tensors, {"format": FORMAT, "state": text}))


def check_saved(path: Path) -> None:
    """Raise TrainingDataError if there is no saved state."""
    if not path.is_file():
        raise TrainingDataError(f"{path}: nothing to resume; start without --resume")


def load_state(path: Path, settings: str) -> tuple[RunState, dict[str, Tensor]]:
    """The saved state of a run with the same settings. Raises TrainingDataError."""
    check_saved(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
    except (SafetensorError, OSError) as error:
        raise TrainingDataError(f"{path} is damaged: {error}") from error
    state = _parse(path, metadata)
    if state.settings != settings:
        raise TrainingDataError(
            f"{path} belongs to a run with other data, options or another model; give the same "
            "command with --resume, or start a new run without it"
        )
    return state, tensors


def _parse(path: Path, metadata: dict[str, str]) -> RunState:
    try:
        if metadata.get("format") != FORMAT:
            raise ValueError(f"format {metadata.get('format')!r}, not {FORMAT!r}")
        values: dict[str, Any] = json.loads(metadata["state"])
        values["history"] = [Judgement(**one) for one in values["history"]]
        return RunState(**values)
    except (KeyError, TypeError, ValueError) as error:
        raise TrainingDataError(f"{path} is not the state of a run: {error}") from error
