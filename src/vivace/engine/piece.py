"""What a session makes, a few frames at a time."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vivace.backends.base import Samples
from vivace.speech import FinishReason


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """The next part of an utterance; the last one may be empty."""

    codes: NDArray[np.int64]  # [frames, codebooks]
    samples: Samples
    finish_reason: FinishReason | None = None  # set on the last piece
    num_stalled: int = 0  # frames at the end, this piece's and earlier ones, that say nothing

    def without(self, num_frames: int) -> Piece:
        """What is left when so many frames are taken off its start."""
        if not num_frames:
            return self
        samples = self.samples[num_frames * (len(self.samples) // len(self.codes)) :]
        return dataclasses.replace(self, codes=self.codes[num_frames:], samples=samples)


def join(pieces: list[Piece]) -> Piece:
    """Consecutive pieces as one; the last says how it ends."""
    return dataclasses.replace(
        pieces[-1],
        codes=np.concatenate([piece.codes for piece in pieces]),
        samples=np.concatenate([piece.samples for piece in pieces]),
    )
