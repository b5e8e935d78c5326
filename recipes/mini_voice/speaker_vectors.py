"""Speaker vectors of utterances of the training voices, and their use by the talker in training.

A voice has several vectors, one of each utterance. The talker gets the vector of a random utterance
of the voice, so that the vector contains the voice and not the words.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from recipes.mini_voice.common import DEVICE
from recipes.mini_voice.lines import SPEAKER
from recipes.mini_voice.voices import NUM_VOICES, TRAINING_VOICES, voice_of

NO_VOICE = -1


@dataclass(frozen=True, eq=False)
class SpeakerVectors:
    """Vectors [utterances, hidden], and the utterances of each voice [voices, most]."""

    vectors: Tensor
    members: Tensor
    counts: Tensor  # [voices]

    @classmethod
    def read(cls, path: Path) -> SpeakerVectors:
        with np.load(path) as data:
            vectors, voices = data["vectors"].astype(np.float32), voice_of(data["lines"] % SPEAKER)
        own = [np.flatnonzero(voices == voice) for voice in range(NUM_VOICES)]
        members = np.zeros((len(own), max(map(len, own))), np.int64)
        for row, found in zip(members, own, strict=True):
            row[: len(found)] = found
        counts = np.array([len(found) for found in own], np.float64)
        arrays = (vectors, members, counts)
        return cls(*(torch.from_numpy(array).to(DEVICE) for array in arrays))

    def draw(self, voices: Tensor) -> Tensor:
        """A random vector of each voice [B]: [B, hidden]. Zeros without a voice or vectors."""
        known = voices.clamp(min=0)
        place = torch.rand(len(voices), dtype=torch.float64, device=voices.device)
        place = (place * self.counts[known]).long()
        vectors = self.vectors[self.members[known, place]]
        is_known = (voices >= 0) & (self.counts[known] > 0)
        return torch.where(is_known[:, None], vectors, 0.0)


def voices_of_lines(settings: SimpleNamespace, lines: np.ndarray) -> np.ndarray:
    """The training voice of each line number, or NO_VOICE for a preset speaker."""
    names = settings.data.speakers
    place = names.index(TRAINING_VOICES) if TRAINING_VOICES in names else len(names)
    return np.where(lines // SPEAKER == place, voice_of(lines % SPEAKER), NO_VOICE)
