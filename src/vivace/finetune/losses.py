"""Teacher-forced losses of talker and predictor, from the logits of `vivace.teacher_forcing`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vivace.model.talker import Qwen3TTS, Talker
from vivace.teacher_forcing import Batch, first_logits, residual_logits, talker_states

FRAMES_PER_PASS = 512  # of the predictor, to bound the memory of its logits


@dataclass(frozen=True, slots=True, eq=False)
class CodeLosses:
    """Cross entropies of each codebook, summed: [codebooks]."""

    sums: Tensor
    counts: Tensor

    @property
    def means(self) -> Tensor:
        return self.sums / self.counts.to(self.sums)

    def total(self, residual_weight: float, counts: Tensor | None = None) -> Tensor:
        """The loss to minimise: codebook 0, and the weighted mean of the others.

        `counts` are those of a whole step of several batches. The sum over its batches is then
        the loss of one large batch.
        """
        means = self.sums / (self.counts if counts is None else counts).to(self.sums)
        return means[0] + residual_weight * means[1:].mean()


def code_losses(model: Qwen3TTS, batch: Batch, *, recomputes: bool = False) -> CodeLosses:
    """The losses of a batch. `recomputes` saves memory: logits are computed again in backward."""
    talker = model.talker
    hidden = talker_states(talker, batch)
    first = _first_loss(talker, hidden, batch)
    predict = partial(_residual_losses, talker)
    parts = []
    for rows, frames in zip(
        batch.before.split(FRAMES_PER_PASS), batch.frames.split(FRAMES_PER_PASS), strict=True
    ):
        if recomputes:
            parts.append(checkpoint(predict, hidden[rows], frames, use_reentrant=False))
        else:
            parts.append(predict(hidden[rows], frames))
    sums = torch.cat((first[None], torch.stack(parts).sum(0)))
    return CodeLosses(sums, batch.counts)


def _first_loss(talker: Talker, hidden: Tensor, batch: Batch) -> Tensor:
    ends = torch.full_like(batch.last, talker.config.codec_eos_token_id)
    wanted = torch.cat((batch.frames[:, 0], ends))
    return F.cross_entropy(first_logits(talker, hidden, batch), wanted, reduction="sum")


def _residual_losses(talker: Talker, hidden: Tensor, frames: Tensor) -> Tensor:
    """Summed losses of codebooks 1 and up: [codebooks - 1]."""
    logits = residual_logits(talker, hidden, frames)
    return torch.stack(
        [
            F.cross_entropy(one, frames[:, g], reduction="sum")
            for g, one in enumerate(logits, start=1)
        ]
    )
