"""Logits of the engine's reference backend while given codes are forced on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vivace.backends import frame_maker
from vivace.backends.eager import EagerBackend
from vivace.model.codec import Codec
from vivace.model.talker import Qwen3TTS
from vivace.prompt import Prompt
from vivace.speech import SamplingParams


@dataclass
class Forcing:
    """Replaces the draws of the backend by given codes and keeps its logits."""

    wanted: list[int]  # in the order of the draws
    logits: list[Tensor] = field(default_factory=list)

    def keep(self, logits: Tensor, *_: Any) -> Tensor:
        self.logits.append(logits[0].clone())
        return logits

    def draw(self, scores: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        code = self.wanted[len(self.logits) - 1]
        num_rows = len(scores)
        return torch.full((num_rows,), code), torch.zeros(num_rows)


def engine_losses(
    model: Qwen3TTS, codec: Codec, prompt: Prompt, codes: NDArray[np.int64]
) -> list[float]:
    """Mean cross entropy of each codebook; codebook 0 includes the end of speech."""
    end = model.config.talker_config.codec_eos_token_id
    num_books = codes.shape[1]
    forcing = Forcing([*codes.flatten().tolist(), end, *[0] * num_books])
    backend = EagerBackend(model, codec)
    with (
        patch.object(frame_maker, "talker_scores", forcing.keep),
        patch.object(frame_maker, "shape_scores", forcing.keep),
        patch.object(frame_maker, "draw", forcing.draw),
    ):
        slot = backend.admit(prompt, SamplingParams(seed=0, max_frames=len(codes) + 1))
        made = backend.step([slot], len(codes) + 1)
    assert made.of(0).tolist() == codes.tolist(), "the codes were not forced"
    sums = torch.zeros(num_books)
    for index in range(codes.size + 1):
        wanted = torch.tensor(forcing.wanted[index])
        sums[index % num_books] += F.cross_entropy(forcing.logits[index], wanted)
    counts = torch.tensor([len(codes) + 1, *[len(codes)] * (num_books - 1)])
    return (sums / counts).tolist()
