"""What the front door hands out: samples, the codes they came from, and why they end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vivace.audio.writer import write_audio
from vivace.speech import FinishReason, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Audio:
    """One spoken utterance."""

    samples: NDArray[np.float32]  # [n], -1 to 1
    sample_rate: int
    codes: NDArray[np.int64]  # [frames, codebooks]
    finish_reason: FinishReason
    usage: Usage

    @property
    def duration_s(self) -> float:
        return len(self.samples) / self.sample_rate

    def save(self, path: str | Path) -> Path:
        """Write the samples to a file; its extension picks the format (.wav, .flac, .mp3, …)."""
        return write_audio(path, self.samples, self.sample_rate)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AudioChunk:
    """The next part of a stream; the last one may have no samples."""

    samples: NDArray[np.float32]  # [n], -1 to 1
    sample_rate: int
    start_s: float  # where it begins in the whole
    is_last: bool
    finish_reason: FinishReason | None  # on the last chunk
    codes: NDArray[np.int64]  # [frames, codebooks]
