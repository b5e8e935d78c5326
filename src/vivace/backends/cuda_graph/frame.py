"""One frame for a batch of slots, as tensor operations that never ask the host.

The order is that of the reference (frame_maker.py): read the last frame and the next text, draw
codebook 0, draw the others. A slot that has ended or waits is computed too, and nothing of it is
kept. How the layers are computed is a `Computer`'s business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from vivace.backends.cuda_graph.slot_table import (
    FAILED,
    LENGTH,
    NUM_PROGRESS,
    RING,
    RUNNING,
    STOP,
    WAITING,
    Number,
    SlotTable,
)
from vivace.speech import SamplingParams

FEW_RANKS = 64


class DrawKind(NamedTuple):
    """What of a draw a graph cannot read from a tensor."""

    num_ranked: int  # how many ranks top-k needs to know; 0 for all of them
    has_top_p: bool

    @classmethod
    def of(cls, params: Sequence[SamplingParams]) -> DrawKind:
        kept = [k for p in params for k in (p.top_k, p.predictor_top_k)]
        is_few = all(0 < k <= FEW_RANKS for k in kept)
        has_top_p = any(p < 1.0 for x in params for p in (x.top_p, x.predictor_top_p))
        return cls(FEW_RANKS if is_few else 0, has_top_p)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the rows of a batch read and write keys and values."""

    slots: Tensor  # int64 [B]
    position: Tensor  # int64 [B]: of the new key
    num_keys: Tensor  # int64 [B]: seen by the row, the new one included
    span: int  # no row sees more


@dataclass(frozen=True, slots=True)
class Draws:
    """How the rows of a batch draw."""

    kind: DrawKind
    numbers: Tensor  # int64 [Number, B]
    scales: Tensor  # float32 [Scale, B]
    history: Tensor  # bool [B, vocabulary]
    is_early: Tensor  # bool [B]: the end of speech is not drawn yet


@dataclass(frozen=True, slots=True)
class Spoken:
    codes: Tensor  # int64 [B, groups]
    code_sum: Tensor  # [B, hidden]
    is_finite: Tensor  # bool [B]


class Computer(Protocol):
    """Runs the layers."""

    name: str
    packs_prompts: bool  # rows of several prompts, or a part of one, can be read in one pass

    def kind(self, params: Sequence[SamplingParams]) -> DrawKind:
        """What distinguishes graphs that draw for these slots."""

    def text_vectors(self, ids: Tensor) -> Tensor:
        """int [B] to [B, hidden]."""

    def read(self, x: Tensor, place: Place) -> Tensor:
        """Talker rows [B, hidden] to hidden states [B, hidden]."""

    def read_prompts(self, x: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        """Rows of prompts [M, hidden], each of a slot and position, to hidden states.

        A slot's rows begin at a multiple of `TILE`. Padding has the position after the last.
        """

    def speak(self, hidden: Tensor, draws: Draws) -> Spoken:
        """All codes of a frame from the talker's hidden states [B, hidden]."""


class FrameLoop:
    def __init__(self, table: SlotTable, computer: Computer, pad_id: int) -> None:
        self._table = table
        self._computer = computer
        self._pad_id = pad_id
        self._eos = table.config.codec_eos_token_id

    def make(self, rows: Tensor, span: int, kind: DrawKind) -> None:
        """One frame for these rows; a span of 0 when all are fresh and have nothing to read."""
        table = self._table
        numbers = table.numbers.index_select(1, rows)
        status, num_frames, has_sum = numbers[: Number.NEXT_TEXT]
        has_text = numbers[Number.NEXT_TEXT] < numbers[Number.NUM_TEXTS]
        is_waiting = (has_sum > 0) & ~has_text & (numbers[Number.IS_COMPLETE] == 0)
        status = torch.where(status <= WAITING, is_waiting.long(), status)
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
        spoken = self._computer.speak(hidden, draws)
        is_end = spoken.codes[:, 0] == self._eos
        is_kept = is_active & spoken.is_finite & ~is_end
        self._keep(rows, spoken, is_kept, num_frames)
        kept = num_frames + is_kept
        is_full = kept >= numbers[Number.MAX_FRAMES]
        verdict = torch.where(is_end, STOP, torch.where(is_full, LENGTH, RUNNING))
        verdict = torch.where(spoken.is_finite, verdict, FAILED)
        progress = (
            torch.where(is_active, verdict, status),
            kept,
            has_sum | is_kept,
            numbers[Number.NEXT_TEXT] + (is_read & has_text),
            numbers[Number.POSITION] + is_read,
        )
        table.numbers[:NUM_PROGRESS].index_copy_(1, rows, torch.stack(progress))

    def _read(
        self,
        rows: Tensor,
        numbers: Tensor,
        is_read: Tensor,
        has_text: Tensor,
        hidden: Tensor,
        span: int,
    ) -> Tensor:
        """Feed the last frame and the next text to the talker, in the rows that have them."""
        table = self._table
        ids = table.text_ids[rows, numbers[Number.NEXT_TEXT]]
        texts = self._computer.text_vectors(torch.where(has_text, ids, self._pad_id))
        position = numbers[Number.POSITION]
        place = Place(
            slots=rows.clamp(max=table.num_slots - 1),
            position=torch.where(is_read, position, table.num_positions),
            num_keys=torch.where(is_read, position + 1, 1),
            span=span,
        )
        x = table.code_sum.index_select(0, rows) + texts
        hidden = torch.where(is_read[:, None], self._computer.read(x, place), hidden)
        table.hidden.index_copy_(0, rows, hidden)
        return hidden

    def _keep(self, rows: Tensor, spoken: Spoken, is_kept: Tensor, num_frames: Tensor) -> None:
        table = self._table
        first = spoken.codes[:, 0]
        table.history[rows, first] = table.history[rows, first] | is_kept
        # Past its frames, a slot's next place in the ring holds nothing the host still wants.
        table.ring[rows, num_frames % RING] = spoken.codes.int()
        code_sum = table.code_sum.index_select(0, rows)
        code_sum = torch.where(is_kept[:, None], spoken.code_sum, code_sum)
        table.code_sum.index_copy_(0, rows, code_sum)
