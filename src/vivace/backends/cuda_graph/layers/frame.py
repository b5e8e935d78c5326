"""One frame for a batch of slots, as tensor operations without a host synchronisation.

The order equals the reference (frame_maker.py): run the talker on the last frame and the next text
id, draw codebook 0, draw the other codebooks. Ended and waiting slots are computed too; their
results are discarded. `Layers` run the model. A `SlotUpdater` reads the inputs of a frame from the
slot table and stores its results, in PyTorch; `FusedSlotUpdater` (slot_kernels.py) does the same in
four kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from vivace.backends.cuda_graph.slots.table import (
    PROGRESS,
    REPORT,
    RING,
    Number,
    Scale,
    SlotTable,
    Status,
)
from vivace.backends.frame_maker import FrameCodes
from vivace.sampling import Shape
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
class KvPositions:
    """Positions of a batch's rows in the KV cache."""

    slots: Tensor  # int64 [B]
    position: Tensor  # int64 [B], of the new key
    num_keys: Tensor  # int64 [B]: keys attended to, including the new one
    span: int  # upper bound of num_keys


class SamplingRows(NamedTuple):
    """Sampling parameters of the talker or the predictor for the rows of a batch: [B] each."""

    temperature: Tensor  # float32
    top_p: Tensor  # float32
    is_greedy: Tensor  # int64
    last: Tensor  # int64


@dataclass(frozen=True, slots=True)
class SamplingState:
    """The sampling state of the rows of a batch."""

    kind: DrawKind
    numbers: Tensor  # int64 [Number, B]
    scales: Tensor  # float32 [Scale, B]
    history: Tensor  # bool [B, vocabulary]
    is_early: Tensor  # bool [B]: before min_frames, where end of speech is banned
    adapters: Tensor | None = None  # int64 [B]; None: no adapters are loaded

    @property
    def talker(self) -> SamplingRows:
        scales, numbers = self.scales, self.numbers
        return SamplingRows(
            scales[Scale.TEMPERATURE],
            scales[Scale.TOP_P],
            numbers[Number.IS_GREEDY],
            numbers[Number.LAST],
        )

    @property
    def predictor(self) -> SamplingRows:
        scales, numbers = self.scales, self.numbers
        return SamplingRows(
            scales[Scale.PREDICTOR_TEMPERATURE],
            scales[Scale.PREDICTOR_TOP_P],
            numbers[Number.PREDICTOR_IS_GREEDY],
            numbers[Number.PREDICTOR_LAST],
        )

    def shape(self, rows: SamplingRows, num_codes: int) -> Shape:
        """The same parameters, as sampling.py takes them."""
        num_ranked = self.kind.num_ranked
        return Shape(
            temperature=rows.temperature[:, None],
            is_greedy=rows.is_greedy[:, None] > 0,
            last=rows.last[:, None],
            top_p=rows.top_p[:, None],
            num_ranked=num_codes if num_ranked is None else min(num_ranked, num_codes),
            has_top_p=self.kind.has_top_p,
        )


class SlotUpdater:
    def __init__(
        self, table: SlotTable, pad_id: int, text_vectors: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        self._table, self._pad_id, self._text_vectors = table, pad_id, text_vectors
        self._eos = table.config.codec_eos_token_id

    def begin(
        self, rows: Tensor, kind: DrawKind, span: int
    ) -> tuple[SamplingState, tuple[Tensor, KvPositions] | None]:
        """The sampling state, and unless the span is 0 the talker's input rows [B, hidden].

        An input row is the sum of the last frame's embeddings and the next text id's.
        """
        table = self._table
        numbers = table.numbers.index_select(1, rows)
        draws = SamplingState(
            kind=kind,
            numbers=numbers,
            scales=table.scales.index_select(1, rows),
            history=table.history.index_select(0, rows),
            is_early=numbers[Number.NUM_FRAMES] < numbers[Number.MIN_FRAMES],
            adapters=table.adapters_of(rows),
        )
        return draws, self._reading(rows, RowState.of(numbers), span) if span else None

    def _reading(self, rows: Tensor, state: RowState, span: int) -> tuple[Tensor, KvPositions]:
        table, numbers = self._table, state.numbers
        ids = table.text_ids[rows, numbers[Number.NEXT_TEXT]]
        texts = self._text_vectors(torch.where(state.has_text, ids, self._pad_id), rows)
        position = numbers[Number.POSITION]
        place = KvPositions(
            slots=rows,
            position=torch.where(state.is_read, position, table.num_positions),
            num_keys=torch.where(state.is_read, position + 1, 1),
            span=span,
        )
        return table.code_sum.index_select(0, rows) + texts, place

    def settle(self, rows: Tensor, draws: SamplingState, states: Tensor | None) -> Tensor:
        """Store the talker's states; returns hidden states [B, hidden], old ones for idle rows."""
        hidden = self._table.hidden.index_select(0, rows)
        if states is None:
            return hidden
        is_read = RowState.of(draws.numbers).is_read
        hidden = torch.where(is_read[:, None], states, hidden)
        self._table.hidden.index_copy_(0, rows, hidden)
        if self._table.head is not None:
            self._note_places(rows, draws.numbers, is_read)
        return hidden

    def _note_places(self, rows: Tensor, numbers: Tensor, is_read: Tensor) -> None:
        """Store where the watched head attends in each row's text, and its share of attention."""
        table, own = self._table, numbers[Number.OWN_ROW, :, None]
        position = torch.arange(table.scores.shape[1], device=rows.device)
        is_seen = position <= numbers[Number.POSITION, :, None]
        scores = table.scores.index_select(0, rows).masked_fill(~is_seen, -torch.inf)
        is_own = (position >= own) & (position < own + numbers[Number.NUM_OWN, :, None])
        weights = scores.softmax(-1).masked_fill(~is_own, 0.0)
        share, place = weights.sum(-1), weights.argmax(-1) - own[:, 0]
        at = rows, numbers[Number.NUM_FRAMES] % RING
        table.places[at] = torch.where(is_read & (share > 0), place, -1).int()
        table.shares[at] = share

    def end(self, rows: Tensor, draws: SamplingState, spoken: FrameCodes) -> None:
        """Store the codes of active rows and update the status of every row."""
        table, state, numbers = self._table, RowState.of(draws.numbers), draws.numbers
        is_finite, num_frames = spoken.is_finite > 0, numbers[Number.NUM_FRAMES]
        is_end = spoken.codes[:, 0] == self._eos
        is_kept = state.is_active & is_finite & ~is_end
        self._keep(rows, spoken, is_kept, num_frames)
        kept = num_frames + is_kept
        is_full = kept >= numbers[Number.MAX_FRAMES]
        verdict = torch.where(
            is_end, Status.STOP, torch.where(is_full, Status.LENGTH, Status.RUNNING)
        )
        verdict = torch.where(is_finite, verdict, Status.FAILED)
        changed = torch.stack(  # as in PROGRESS
            [
                torch.where(state.is_active, verdict, state.status),
                kept,
                numbers[Number.HAS_SUM] | is_kept,
                numbers[Number.NEXT_TEXT] + (state.is_read & state.has_text),
                numbers[Number.POSITION] + state.is_read,
            ]
        )
        table.numbers[PROGRESS].index_copy_(1, rows, changed)

    def report(self, rows: Tensor, out: Tensor) -> None:
        """Store what the host reads of these rows in `out`, int32 [B, `SlotTable.report_size`]."""
        table = self._table
        numbers = table.numbers[REPORT].index_select(1, rows).T
        parts = (table.places, table.shares.view(torch.int32), table.ring.flatten(1))
        torch.cat((numbers.int(), *(part.index_select(0, rows) for part in parts)), 1, out=out)

    def _keep(self, rows: Tensor, spoken: FrameCodes, is_kept: Tensor, num_frames: Tensor) -> None:
        table = self._table
        first = spoken.codes[:, 0]
        table.history[rows, first] = table.history[rows, first] | is_kept
        # For an ended slot this overwrites a ring entry that the host has already read.
        table.ring[rows, num_frames % RING] = spoken.codes.int()
        code_sum, new_sum = table.code_sum.index_select(0, rows), spoken.code_sum
        code_sum = torch.where(is_kept[:, None], new_sum.to(code_sum.dtype), code_sum)
        table.code_sum.index_copy_(0, rows, code_sum)


@dataclass(frozen=True, slots=True)
class RowState:
    """State of the rows before a frame, derived from their numbers."""

    numbers: Tensor  # int64 [Number, B]
    status: Tensor  # int64 [B]
    is_active: Tensor  # bool [B]: the row makes a frame
    is_read: Tensor  # bool [B]: the talker first reads the last frame
    has_text: Tensor  # bool [B]

    @classmethod
    def of(cls, numbers: Tensor) -> RowState:
        has_sum = numbers[Number.HAS_SUM] > 0
        has_text = numbers[Number.NEXT_TEXT] < numbers[Number.NUM_TEXTS]
        is_waiting = has_sum & ~has_text & (numbers[Number.IS_COMPLETE] == 0)
        status = numbers[Number.STATUS]
        open_status = torch.where(is_waiting, Status.WAITING, Status.RUNNING)
        status = torch.where(status <= Status.WAITING, open_status, status)
        is_active = status == Status.RUNNING
        return cls(numbers, status, is_active, is_active & has_sum, has_text)


class Layers(Protocol):
    """Runs the talker and the predictor on the slot table's KV cache."""

    name: str
    packs_prompts: bool  # a pass may hold rows of several prompts, or part of one
    frames_per_graph: int  # frames captured in one graph, in a step of that many or more

    def kind(self, params: Sequence[SamplingParams]) -> DrawKind:
        """The kind of graph for these sampling parameters."""

    def read(self, x: Tensor, place: KvPositions) -> Tensor:
        """Talker rows [B, hidden] to hidden states [B, hidden]."""

    def read_prompts(self, x: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        """Prefill: prompt rows [M, hidden], each with its slot and position, to hidden states.

        A slot's rows begin at a multiple of `TILE`. Padding rows have position `num_positions`.
        """

    def text_vectors(self, ids: Tensor, slots: Tensor) -> Tensor:
        """Text vectors of ids [n], with the adapters of their slots [n] or [1]: [n, hidden]."""

    def draw_frame(self, hidden: Tensor, draws: SamplingState) -> FrameCodes:
        """Draw all codes of a frame from the talker's hidden states [B, hidden]."""

    def slot_updater(self, pad_id: int) -> SlotUpdater:
        """The implementation that reads and writes the slot table around a frame."""


class FrameLoop:
    def __init__(self, layers: Layers, pad_id: int) -> None:
        self._layers = layers
        self._updater = layers.slot_updater(pad_id)

    def make(self, rows: Tensor, span: int, kind: DrawKind) -> None:
        """Make one frame for these rows. A span of 0 skips the talker (newly prefilled slots)."""
        updater = self._updater
        draws, reading = updater.begin(rows, kind, span)
        states = self._layers.read(*reading) if reading else None
        hidden = updater.settle(rows, draws, states)
        updater.end(rows, draws, self._layers.draw_frame(hidden, draws))

    def report(self, rows: Tensor, out: Tensor) -> None:
        self._updater.report(rows, out)
