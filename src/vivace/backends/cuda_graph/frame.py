"""One frame for a batch of slots, as tensor operations without a host synchronisation.

The order is that of the reference (frame_maker.py): run the talker on the last frame and the next
text, draw codebook 0, draw the others. A slot that has ended or waits for text is computed too,
and its result is dropped. An implementation of `Layers` runs the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from vivace.backends.cuda_graph.slot_table import (
    FAILED,
    LAST_OPEN,
    LENGTH,
    PROGRESS,
    RING,
    RUNNING,
    STOP,
    WAITING,
    Number,
    SlotTable,
    as_slice,
)
from vivace.speech import SamplingParams

FEW_RANKS = 64


class DrawKind(NamedTuple):
    """The sampling settings that are fixed when a graph is captured."""

    num_ranked: int | None  # scores to sort for top-k; None sorts all
    has_top_p: bool

    @classmethod
    def of(cls, params: Sequence[SamplingParams]) -> DrawKind:
        kept = [k for p in params for k in (p.top_k, p.predictor_top_k)]
        is_few = all(0 < k <= FEW_RANKS for k in kept)
        has_top_p = any(p < 1.0 for x in params for p in (x.top_p, x.predictor_top_p))
        return cls(FEW_RANKS if is_few else None, has_top_p)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the rows of a batch read and write the KV cache."""

    slots: Tensor  # int64 [B]
    position: Tensor  # int64 [B]: of the new key
    num_keys: Tensor  # int64 [B]: that the row attends to, the new one included
    span: int  # upper bound of num_keys


@dataclass(frozen=True, slots=True)
class Draws:
    """The sampling state of the rows of a batch."""

    kind: DrawKind
    numbers: Tensor  # int64 [Number, B]
    scales: Tensor  # float32 [Scale, B]
    history: Tensor  # bool [B, vocabulary]
    is_early: Tensor  # bool [B]: before min_frames, the end of speech may not be drawn


@dataclass(frozen=True, slots=True)
class FrameCodes:
    """The codes drawn for one frame of every row."""

    codes: Tensor  # int64 [B, groups]
    code_sum: Tensor  # [B, hidden]
    is_finite: Tensor  # bool [B]


class Layers(Protocol):
    """Runs the talker and the predictor on the slot table's KV cache."""

    name: str
    packs_prompts: bool  # one pass may hold rows of several prompts, or part of a prompt
    frames_per_graph: int  # of a step, where it has so many

    def kind(self, params: Sequence[SamplingParams]) -> DrawKind:
        """The kind of graph that these slots' sampling needs."""

    def text_vectors(self, ids: Tensor) -> Tensor:
        """int [B] to [B, hidden]."""

    def read(self, x: Tensor, place: Place) -> Tensor:
        """Talker rows [B, hidden] to hidden states [B, hidden]."""

    def read_prompts(self, x: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        """Prefill: prompt rows [M, hidden], each with its slot and position, to hidden states.

        A slot's rows begin at a multiple of `TILE`. Padding rows have position `num_positions`.
        """

    def speak(self, hidden: Tensor, draws: Draws) -> FrameCodes:
        """All codes of a frame from the talker's hidden states [B, hidden]."""


class FrameLoop:
    def __init__(self, table: SlotTable, layers: Layers, pad_id: int) -> None:
        self._table = table
        self._layers = layers
        self._pad_id = pad_id
        self._eos = table.config.codec_eos_token_id

    def make(self, rows: Tensor, span: int, kind: DrawKind) -> None:
        """One frame for these rows; a span of 0 skips the talker, for freshly prefilled slots."""
        table = self._table
        numbers = table.numbers.index_select(1, rows)
        num_frames, has_sum = numbers[Number.NUM_FRAMES], numbers[Number.HAS_SUM]
        has_text = numbers[Number.NEXT_TEXT] < numbers[Number.NUM_TEXTS]
        is_waiting = (has_sum > 0) & ~has_text & (numbers[Number.IS_COMPLETE] == 0)
        status = numbers[Number.STATUS]
        open_status = torch.where(is_waiting, WAITING, RUNNING)
        status = torch.where(status <= LAST_OPEN, open_status, status)
        is_active = status == RUNNING
        is_read = is_active & (has_sum > 0)
        hidden = table.hidden.index_select(0, rows)
        if span:
            hidden = self._read(rows, numbers, is_read, has_text, hidden, span)
        draws = Draws(
            kind=kind,
            numbers=numbers,
            scales=table.scales.index_select(1, rows),
            history=table.history.index_select(0, rows),
            is_early=num_frames < numbers[Number.MIN_FRAMES],
        )
        spoken = self._layers.speak(hidden, draws)
        is_end = spoken.codes[:, 0] == self._eos
        is_kept = is_active & spoken.is_finite & ~is_end
        self._keep(rows, spoken, is_kept, num_frames)
        kept = num_frames + is_kept
        is_full = kept >= numbers[Number.MAX_FRAMES]
        verdict = torch.where(is_end, STOP, torch.where(is_full, LENGTH, RUNNING))
        verdict = torch.where(spoken.is_finite, verdict, FAILED)
        progress = {
            Number.STATUS: torch.where(is_active, verdict, status),
            Number.NUM_FRAMES: kept,
            Number.HAS_SUM: has_sum | is_kept,
            Number.NEXT_TEXT: numbers[Number.NEXT_TEXT] + (is_read & has_text),
            Number.POSITION: numbers[Number.POSITION] + is_read,
        }
        changed = torch.stack([progress[number] for number in PROGRESS])
        table.numbers[as_slice(PROGRESS)].index_copy_(1, rows, changed)

    def _read(
        self,
        rows: Tensor,
        numbers: Tensor,
        is_read: Tensor,
        has_text: Tensor,
        hidden: Tensor,
        span: int,
    ) -> Tensor:
        """Run the talker on the last frame plus the next text; keep the result where `is_read`."""
        table = self._table
        ids = table.text_ids[rows, numbers[Number.NEXT_TEXT]]
        texts = self._layers.text_vectors(torch.where(has_text, ids, self._pad_id))
        position = numbers[Number.POSITION]
        place = Place(
            slots=rows,
            position=torch.where(is_read, position, table.num_positions),
            num_keys=torch.where(is_read, position + 1, 1),
            span=span,
        )
        x = table.code_sum.index_select(0, rows) + texts
        hidden = torch.where(is_read[:, None], self._layers.read(x, place), hidden)
        table.hidden.index_copy_(0, rows, hidden)
        return hidden

    def _keep(self, rows: Tensor, spoken: FrameCodes, is_kept: Tensor, num_frames: Tensor) -> None:
        table = self._table
        first = spoken.codes[:, 0]
        table.history[rows, first] = table.history[rows, first] | is_kept
        # Of an ended slot this overwrites a ring entry that the host has read already.
        table.ring[rows, num_frames % RING] = spoken.codes.int()
        code_sum = table.code_sum.index_select(0, rows)
        code_sum = torch.where(is_kept[:, None], spoken.code_sum, code_sum)
        table.code_sum.index_copy_(0, rows, code_sum)
