"""Teacher-forced logits of talker and predictor, computed with the modules that the engine runs.

An example is a prompt of the engine and its frames. `Prompt.continued` appends the frames as the
engine reads them back. The row before frame t predicts codebook 0 of frame t. The row after the
last frame predicts the end of speech. The predictor starts from the hidden state of the row before
its frame, as in the engine, and row g of it predicts codebook g.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivace.model.cache import attend_causally
from vivace.model.config import NO_CODE
from vivace.model.talker import Talker
from vivace.prompt import Prompt


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Example:
    """One utterance."""

    prompt: Prompt
    codes: NDArray[np.int64]  # [frames, codebooks]
    speaker: str | None = None  # a trained vector, in place of the prompt's own

    def __len__(self) -> int:
        """The number of rows that the talker reads."""
        return len(self.prompt) + len(self.codes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Examples as tensors, padded at the end. Causal attention keeps the padding out."""

    text_ids: Tensor  # [B, L]
    codes: Tensor  # [B, L, codebooks]
    speakers: Tensor | None  # [B, hidden], vectors of the rows with a speaker
    before: Tensor  # [N], the row before each frame, as an index into B * L rows
    frames: Tensor  # [N, codebooks], the codes to predict
    last: Tensor  # [B], the row that predicts the end of speech

    @property
    def counts(self) -> Tensor:
        """Number of predictions of each codebook: float32 [codebooks]."""
        return count_predictions(len(self.last), *self.frames.shape)


def count_predictions(num_examples: int, num_frames: int, num_books: int) -> Tensor:
    """Predictions of each codebook; codebook 0 also predicts the end of every example."""
    counts = torch.full((num_books,), float(num_frames))
    counts[0] += num_examples
    return counts


def collate(
    examples: Sequence[Example],
    device: torch.device,
    vectors: Mapping[str, Tensor] | None = None,  # of trained speakers
) -> Batch:
    whole = [example.prompt.continued(example.codes, (), is_complete=True) for example in examples]
    length = max(map(len, whole))
    num_books = whole[0].codes.shape[1]
    text_ids = np.full((len(whole), length), whole[0].pad_id, np.int64)
    codes = np.full((len(whole), length, num_books), NO_CODE, np.int64)
    before, last = [], []
    for number, (example, rows) in enumerate(zip(examples, whole, strict=True)):
        text_ids[number, : len(rows)] = rows.text_ids
        codes[number, : len(rows)] = rows.codes
        first = number * length + len(example.prompt) - 1
        before.append(np.arange(first, first + len(example.codes)))
        last.append(number * length + len(rows) - 1)
    return Batch(
        text_ids=torch.from_numpy(text_ids).to(device),
        codes=torch.from_numpy(codes).to(device),
        speakers=_speakers(examples, vectors or {}, device),
        before=torch.from_numpy(np.concatenate(before)).to(device),
        frames=torch.from_numpy(np.concatenate([one.codes for one in examples])).to(device),
        last=torch.tensor(last, device=device),
    )


def _speakers(
    examples: Sequence[Example], vectors: Mapping[str, Tensor], device: torch.device
) -> Tensor | None:
    found: list[Tensor | None] = []
    for example in examples:
        if example.speaker is not None:
            found.append(vectors[example.speaker].to(device))
        elif example.prompt.speaker is not None:
            found.append(torch.from_numpy(example.prompt.speaker).to(device))
        else:
            found.append(None)
    width = next((one for one in found if one is not None), None)
    if width is None:
        return None
    return torch.stack([torch.zeros_like(width) if one is None else one for one in found])


def talker_states(talker: Talker, batch: Batch) -> Tensor:
    """Hidden states of all rows: [B * L, hidden]."""
    shape = batch.text_ids.shape
    speakers = batch.speakers
    if speakers is not None:
        speakers = speakers.repeat_interleave(shape[1], dim=0)
    rows = talker.rows(batch.text_ids.flatten(), batch.codes.flatten(0, 1), speakers)
    x = rows.view(*shape, -1)
    hidden: Tensor = talker(x, talker.rope.span(0, shape[1], x), attend_causally)
    return hidden.flatten(0, 1)


def first_logits(talker: Talker, hidden: Tensor, batch: Batch) -> Tensor:
    """Logits of codebook 0: of every frame, then of the end of every example."""
    logits: Tensor = talker.codec_head(hidden[torch.cat((batch.before, batch.last))])
    return logits.float()


def residual_logits(talker: Talker, hidden: Tensor, frames: Tensor) -> list[Tensor]:
    """Logits [N, codes] of codebooks 1 and up, for the states [N, hidden] before these frames."""
    predictor, tables = talker.code_predictor, talker.code_tables
    inputs = [hidden, *(table(frames[:, g]) for g, table in enumerate(tables[:-1]))]
    x = predictor(torch.stack(inputs, dim=1), 0, attend_causally)  # [N, codebooks, hidden]
    return [head(x[:, g]).float() for g, head in enumerate(predictor.lm_head, start=1)]
