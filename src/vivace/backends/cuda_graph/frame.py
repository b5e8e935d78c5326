"""One frame for a batch of slots, as tensor operations without a host synchronisation.

The order equals the reference (frame_maker.py): run the talker on the last frame and the next text
id, draw codebook 0, draw the other codebooks. Ended and waiting slots are computed too; their
results are discarded. An implementation of `Layers` runs the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from vivace.backends.cuda_graph.slot_table import SlotTable
from vivace.backends.cuda_graph.slot_updates import (
    DrawKind,
    FrameCodes,
    KvPositions,
    SamplingState,
    SlotUpdater,
)
from vivace.speech import SamplingParams


class Layers(Protocol):
    """Runs the talker and the predictor on the slot table's KV cache."""

    name: str
    packs_prompts: bool  # a pass may hold rows of several prompts, or part of one
    frames_per_graph: int  # frames captured in one graph, in a step of that many or more

    def kind(self, params: Sequence[SamplingParams]) -> DrawKind:
        """The kind of graph for these sampling parameters."""

    def text_vectors(self, ids: Tensor) -> Tensor:
        """int [B] to [B, hidden]."""

    def read(self, x: Tensor, place: KvPositions) -> Tensor:
        """Talker rows [B, hidden] to hidden states [B, hidden]."""

    def read_prompts(self, x: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        """Prefill: prompt rows [M, hidden], each with its slot and position, to hidden states.

        A slot's rows begin at a multiple of `TILE`. Padding rows have position `num_positions`.
        """

    def draw_frame(self, hidden: Tensor, draws: SamplingState) -> FrameCodes:
        """Draw all codes of a frame from the talker's hidden states [B, hidden]."""

    def slot_updater(self, table: SlotTable, pad_id: int) -> SlotUpdater:
        """The implementation that reads and writes the slot table around a frame."""


class FrameLoop:
    def __init__(self, table: SlotTable, layers: Layers, pad_id: int) -> None:
        self._layers = layers
        self._updater = layers.slot_updater(table, pad_id)

    def make(self, rows: Tensor, span: int, kind: DrawKind) -> None:
        """Make one frame for these rows. A span of 0 skips the talker (newly prefilled slots)."""
        updater = self._updater
        draws, reading = updater.begin(rows, kind, span)
        states = self._layers.read(reading.x, reading.place) if reading else None
        hidden = updater.settle(rows, draws, states)
        updater.end(rows, draws, self._layers.draw_frame(hidden, draws))
