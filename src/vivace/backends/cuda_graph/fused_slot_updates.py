"""`SlotUpdater` in three kernels instead of about fifty operations."""

from __future__ import annotations

import torch
from torch import Tensor

from vivace.backends.cuda_graph import slot_kernels
from vivace.backends.cuda_graph.products import options
from vivace.backends.cuda_graph.slot_table import RING, Number, Scale, SlotTable
from vivace.backends.cuda_graph.slot_updates import (
    DrawKind,
    FrameCodes,
    KvPositions,
    SamplingState,
    SlotUpdater,
    TalkerInput,
)
from vivace.backends.cuda_graph.tiles import power_of_two

SCORE_BLOCK = 512  # scores of one step
FEW = power_of_two(max(len(Number), len(Scale)))


class FusedSlotUpdater(SlotUpdater):
    def __init__(self, table: SlotTable, pad_id: int, texts: Tensor) -> None:  # [ids, hidden]
        super().__init__(table, pad_id, lambda ids: texts[ids])
        self._texts = texts
        self._width = table.hidden.shape[1]

    def begin(
        self, rows: Tensor, kind: DrawKind, span: int
    ) -> tuple[SamplingState, TalkerInput | None]:
        table, batch, width = self._table, len(rows), self._width
        num_codes = table.history.shape[1]
        draws = SamplingState(
            kind=kind,
            numbers=table.numbers.new_empty(len(Number), batch),
            scales=table.scales.new_empty(len(Scale), batch),
            history=table.history.new_empty(batch, num_codes),
            is_early=table.history.new_empty(batch),
        )
        x = table.code_sum.new_empty(batch, width)
        place = KvPositions(rows, rows.new_empty(batch), rows.new_empty(batch), span)
        slot_kernels.begin_kernel[(batch,)](
            rows, table.numbers, table.scales, _bytes(table.history), table.text_ids,
            table.code_sum, self._texts,
            draws.numbers, draws.scales, _bytes(draws.history), _bytes(draws.is_early),
            place.position, place.num_keys, x,
            table.numbers.shape[1], num_codes, table.text_ids.shape[1], table.num_positions,
            self._pad_id, width,
            NUM_NUMBERS=len(Number), NUM_SCALES=len(Scale), IS_READING=span > 0,
            FEW=FEW, CODES=power_of_two(num_codes), WIDTH=power_of_two(width),
            num_warps=4, **options(x),
        )  # fmt: skip
        return draws, TalkerInput(x, place) if span else None

    def settle(self, rows: Tensor, draws: SamplingState, states: Tensor | None) -> Tensor:
        if states is None:
            return super().settle(rows, draws, states)
        hidden = torch.empty_like(states)
        table = self._table
        slot_kernels.settle_kernel[(len(rows),)](
            rows, draws.numbers, states, table.hidden, hidden, self._width,
            table.watch, table.scores, table.places, table.shares, table.scores.shape[1],
            WIDTH=power_of_two(self._width), RING=RING, BLOCK=SCORE_BLOCK,
            num_warps=4, **options(states),
        )  # fmt: skip
        return hidden

    def end(self, rows: Tensor, draws: SamplingState, spoken: FrameCodes) -> None:
        table, num_groups = self._table, spoken.codes.shape[1]
        slot_kernels.end_kernel[(len(rows),)](
            rows, draws.numbers, spoken.codes, spoken.code_sum, _bytes(spoken.is_finite),
            table.numbers, _bytes(table.history), table.ring, table.code_sum,
            table.numbers.shape[1], table.history.shape[1], num_groups, self._width, self._eos,
            RING=RING, GROUPS=power_of_two(num_groups), WIDTH=power_of_two(self._width),
            num_warps=4, **options(table.hidden),
        )  # fmt: skip


def _bytes(tensor: Tensor) -> Tensor:
    """Triton would load one bit of a bool."""
    return tensor.view(torch.int8)
