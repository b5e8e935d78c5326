"""One frame for a batch of slots, as tensor operations without a host synchronisation.

The order is that of the reference (frame_maker.py): run the talker on the last frame and the next
text, draw codebook 0, draw the others. A slot that has ended or waits for text is computed too,
and its result is dropped. An implementation of `Layers` runs the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from vivace.backends.cuda_graph.ledger import DrawKind, Draws, FrameCodes, Ledger, Place
from vivace.backends.cuda_graph.slot_table import SlotTable
from vivace.speech import SamplingParams


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

    def ledger(self, table: SlotTable, pad_id: int) -> Ledger:
        """Reads and writes the slot table around a frame."""


class FrameLoop:
    def __init__(self, table: SlotTable, layers: Layers, pad_id: int) -> None:
        self._layers = layers
        self._ledger = layers.ledger(table, pad_id)

    def make(self, rows: Tensor, span: int, kind: DrawKind) -> None:
        """One frame for these rows; a span of 0 skips the talker, for freshly prefilled slots."""
        ledger = self._ledger
        draws, reading = ledger.begin(rows, kind, span)
        states = self._layers.read(reading.x, reading.place) if reading else None
        hidden = ledger.settle(rows, draws, states)
        ledger.end(rows, draws, self._layers.speak(hidden, draws))
