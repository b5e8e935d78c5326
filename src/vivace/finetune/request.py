"""What to fine-tune, on which data, and where the result is written."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from vivace.device.threads import pick_threads
from vivace.errors import TrainingDataError
from vivace.finetune.options import DataOptions, TrainOptions
from vivace.finetune.sources import RUN_FOLDER
from vivace.voices.voice import check_voice_name

ADAPTER_SUFFIX = ".safetensors"
OTHER_FILES = (".bin", ".ckpt", ".gguf", ".pt", ".pth")  # suffixes of formats that are not written
MAX_NOTE = 1_000  # characters of licence and consent


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneRequest:
    """The model to fine-tune, the data, the place of the result and the options."""

    data: Path
    output: Path  # FILE.safetensors: an adapter; a folder: a merged checkpoint
    model: str | None = None  # None: the embedded voice
    name: str | None = None  # of the speaker; None: the data names its speakers
    recordings: DataOptions = field(default_factory=DataOptions)
    training: TrainOptions = field(default_factory=TrainOptions)
    device: str = "auto"
    dtype: str = "auto"
    revision: str | None = None
    offline: bool = False
    resume: bool = False
    licence: str = ""
    consent: str = ""
    samples: int = 4  # held-out sentences to speak after every epoch
    save_every_s: float = 300.0
    threads: int | None = None  # None: PyTorch's number

    def __post_init__(self) -> None:
        if self.name is not None:
            check_voice_name(self.name)
        if self.training.full and not self.is_merged:
            raise TrainingDataError(
                "--full writes a whole checkpoint: give -o a folder, not a file"
            )
        if self.output.suffix.lower() in OTHER_FILES:
            raise TrainingDataError(
                f"{self.output}: the file of an adapter ends with {ADAPTER_SUFFIX}; the name of a "
                f"folder for a merged checkpoint must not end with {self.output.suffix}"
            )
        if os.path.isdir(self.output) or (self.is_merged and os.path.lexists(self.output)):
            raise TrainingDataError(
                f"{self.output} exists; choose another name, or remove it first"
            )
        for note in (self.licence, self.consent):
            if len(note) > MAX_NOTE:
                raise TrainingDataError(f"licence and consent have at most {MAX_NOTE:,} characters")
        if not 0 <= self.samples <= 100:
            raise TrainingDataError(f"--samples must be from 0 to 100, not {self.samples}")
        if not self.save_every_s >= 0:  # NaN too
            raise TrainingDataError(f"--save-every must be 0 or more, not {self.save_every_s:g}")
        pick_threads(self.threads, "cpu", 0)

    @property
    def is_merged(self) -> bool:
        return self.output.suffix.lower() != ADAPTER_SUFFIX

    @property
    def folder(self) -> Path:
        """The folder of the run's own files."""
        name = self.output.name if self.is_merged else self.output.stem
        return self.output.with_name(name + RUN_FOLDER)

    @property
    def model_name(self) -> str:
        return self.model or "the embedded voice"
