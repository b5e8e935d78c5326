# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""`SlotUpdater` in four Triton kernels instead of about fifty operations.

A kernel has one program per row of a batch. Several rows may be the padding slot. They write back
the values that they read.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from vivace.backends.cuda_graph.launch_sizes import power_of_two
from vivace.backends.cuda_graph.layers.frame import (
    DrawKind,
    KvPositions,
    RowState,
    SamplingState,
    SlotUpdater,
)
from vivace.backends.cuda_graph.layers.product_kernels import wait_for_last
from vivace.backends.cuda_graph.layers.products import options
from vivace.backends.cuda_graph.slots.table import RING, Number, Scale, SlotTable, Status
from vivace.backends.frame_maker import FrameCodes

SCORE_BLOCK = 512  # scores of one step
FEW_BLOCK = power_of_two(max(len(Number), len(Scale)))

# Triton reads global numbers only as constexpr.
STATUS, NUM_FRAMES = tl.constexpr(int(Number.STATUS)), tl.constexpr(int(Number.NUM_FRAMES))
HAS_SUM, NEXT_TEXT = tl.constexpr(int(Number.HAS_SUM)), tl.constexpr(int(Number.NEXT_TEXT))
POSITION, NUM_TEXTS = tl.constexpr(int(Number.POSITION)), tl.constexpr(int(Number.NUM_TEXTS))
IS_COMPLETE, NUM_OWN = tl.constexpr(int(Number.IS_COMPLETE)), tl.constexpr(int(Number.NUM_OWN))
OWN_ROW, MAX_FRAMES = tl.constexpr(int(Number.OWN_ROW)), tl.constexpr(int(Number.MAX_FRAMES))
MIN_FRAMES = tl.constexpr(int(Number.MIN_FRAMES))
RUNNING, WAITING, STOP, LENGTH, FAILED = (tl.constexpr(int(each)) for each in Status)


@triton.jit
def _state(numbers, stride):
    """(status, makes a frame, is read by the talker first, has text)"""
    has_sum = tl.load(numbers + HAS_SUM * stride) > 0
    has_text = tl.load(numbers + NEXT_TEXT * stride) < tl.load(numbers + NUM_TEXTS * stride)
    is_complete = tl.load(numbers + IS_COMPLETE * stride) != 0
    is_waiting = has_sum & (has_text == 0) & (is_complete == 0)
    status = tl.load(numbers + STATUS * stride)
    status = tl.where(status <= WAITING, tl.where(is_waiting, WAITING, RUNNING), status)
    is_active = status == RUNNING
    return status, is_active, is_active & has_sum, has_text


@triton.jit
def begin_kernel(
    rows, numbers, scales, history, text_ids, code_sum, texts,
    numbers_out, scales_out, history_out, is_early, position, num_keys, x,
    num_rows, num_codes, text_stride, num_positions, pad_id, width,
    NUM_NUMBERS: tl.constexpr, NUM_SCALES: tl.constexpr, IS_READING: tl.constexpr,
    FEW: tl.constexpr, CODES: tl.constexpr, WIDTH: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Gather the sampling state and compute the talker's input rows."""
    wait_for_last(OVERLAPS)
    b, batch = tl.program_id(0), tl.num_programs(0)
    row = tl.load(rows + b)
    i = tl.arange(0, FEW)
    found = tl.load(numbers + i * num_rows + row, mask=i < NUM_NUMBERS, other=0)
    tl.store(numbers_out + i * batch + b, found, mask=i < NUM_NUMBERS)
    scale = tl.load(scales + i * num_rows + row, mask=i < NUM_SCALES, other=0.0)
    tl.store(scales_out + i * batch + b, scale, mask=i < NUM_SCALES)
    code = tl.arange(0, CODES)
    used = tl.load(history + row * num_codes + code, mask=code < num_codes, other=0)
    tl.store(history_out + b * num_codes + code, used, mask=code < num_codes)
    mine = numbers + row
    num_frames = tl.load(mine + NUM_FRAMES * num_rows)
    tl.store(is_early + b, (num_frames < tl.load(mine + MIN_FRAMES * num_rows)).to(tl.int8))
    if IS_READING:
        _status, _is_active, is_read, has_text = _state(mine, num_rows)
        at = tl.load(mine + POSITION * num_rows)
        tl.store(position + b, tl.where(is_read, at, num_positions))
        tl.store(num_keys + b, tl.where(is_read, at + 1, 1))
        text = tl.load(text_ids + row * text_stride + tl.load(mine + NEXT_TEXT * num_rows))
        text = tl.where(has_text, text, pad_id).to(tl.int64)
        w = tl.arange(0, WIDTH)
        last = tl.load(code_sum + row * width + w, mask=w < width, other=0.0)
        vector = tl.load(texts + text * width + w, mask=w < width, other=0.0)
        total = (last.to(tl.float32) + vector.to(tl.float32)).to(x.dtype.element_ty)
        tl.store(x + b * width + w, total, mask=w < width)


@triton.jit
def _note_place(numbers, stride, scores, places, shares, RING: tl.constexpr, BLOCK: tl.constexpr):
    """Store where the watched head attends in the row's text, and the text's share."""
    count = tl.load(numbers + POSITION * stride).to(tl.int32) + 1
    own = tl.load(numbers + OWN_ROW * stride).to(tl.int32)
    own_end = own + tl.load(numbers + NUM_OWN * stride).to(tl.int32)
    i = tl.arange(0, BLOCK)
    top = -float("inf")
    best = -float("inf")
    place = -1
    for first in range(0, count, BLOCK):
        t = first + i
        score = tl.load(scores + t, mask=t < count, other=-float("inf"))
        top = tl.maximum(top, tl.max(score, 0))
        mine = tl.where((t >= own) & (t < own_end), score, -float("inf"))
        peak = tl.max(mine, 0)
        place = tl.where(peak > best, first + tl.argmax(mine, 0) - own, place)
        best = tl.maximum(best, peak)
    total = 0.0
    share = 0.0
    for first in range(0, count, BLOCK):
        t = first + i
        weight = tl.exp(tl.load(scores + t, mask=t < count, other=-float("inf")) - top)
        total += tl.sum(weight, 0)
        share += tl.sum(tl.where((t >= own) & (t < own_end), weight, 0.0), 0)
    at = tl.load(numbers + NUM_FRAMES * stride) % RING
    tl.store(places + at, place)
    tl.store(shares + at, share / total)


@triton.jit
def settle_kernel(
    rows, numbers, states, hidden, out, width,
    watch, scores, places, shares, score_stride,
    WIDTH: tl.constexpr, RING: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Store the talker's states of rows that were read, and their place in the text."""
    wait_for_last(OVERLAPS)
    b, batch = tl.program_id(0), tl.num_programs(0)
    row = tl.load(rows + b)
    _status, _is_active, is_read, _has_text = _state(numbers + b, batch)
    w = tl.arange(0, WIDTH)
    before = tl.load(hidden + row * width + w, mask=w < width, other=0.0)
    state = tl.load(states + b * width + w, mask=w < width, other=0.0)
    state = tl.where(is_read, state, before)
    tl.store(hidden + row * width + w, state, mask=w < width)
    tl.store(out + b * width + w, state, mask=w < width)
    if is_read & (tl.load(watch) >= 0):
        mine = scores + row * score_stride
        _note_place(numbers + b, batch, mine, places + row * RING, shares + row * RING, RING, BLOCK)


@triton.jit
def end_kernel(
    rows, numbers, codes, new_sum, is_finite,
    numbers_out, history, ring, code_sum,
    num_rows, num_codes, num_groups, width, eos,
    RING: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Store a frame's codes, the sum of their embeddings, and the row's new status."""
    wait_for_last(OVERLAPS)
    b, batch = tl.program_id(0), tl.num_programs(0)
    row = tl.load(rows + b)
    status, is_active, is_read, has_text = _state(numbers + b, batch)
    first = tl.load(codes + b * num_groups)
    is_end, is_good = first == eos, tl.load(is_finite + b) > 0
    is_kept = is_active & is_good & (is_end == 0)
    num_frames = tl.load(numbers + NUM_FRAMES * batch + b)
    tl.store(history + row * num_codes + first, is_kept.to(tl.int8), mask=is_kept)
    g = tl.arange(0, GROUPS)
    code = tl.load(codes + b * num_groups + g, mask=g < num_groups, other=0).to(tl.int32)
    tl.store(ring + (row * RING + num_frames % RING) * num_groups + g, code, mask=g < num_groups)
    w = tl.arange(0, WIDTH)
    total = tl.load(new_sum + b * width + w, mask=w < width, other=0.0)
    total = total.to(code_sum.dtype.element_ty)
    tl.store(code_sum + row * width + w, total, mask=(w < width) & is_kept)
    kept = num_frames + is_kept.to(tl.int64)
    is_full = kept >= tl.load(numbers + MAX_FRAMES * batch + b)
    verdict = tl.where(is_end, STOP, tl.where(is_full, LENGTH, RUNNING))
    verdict = tl.where(is_good, verdict, FAILED)
    mine = numbers_out + row
    tl.store(mine + STATUS * num_rows, tl.where(is_active, verdict, status))
    tl.store(mine + NUM_FRAMES * num_rows, kept)
    has_sum = tl.load(numbers + HAS_SUM * batch + b)
    tl.store(mine + HAS_SUM * num_rows, has_sum | is_kept.to(tl.int64))
    is_used = (is_read & has_text).to(tl.int64)
    tl.store(mine + NEXT_TEXT * num_rows, tl.load(numbers + NEXT_TEXT * batch + b) + is_used)
    at = tl.load(numbers + POSITION * batch + b)
    tl.store(mine + POSITION * num_rows, at + is_read.to(tl.int64))


@triton.jit
def report_kernel(
    rows, numbers, places, shares, ring, out,
    num_rows, num_codes, width,
    RING: tl.constexpr, CODES: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Gather what the host reads of a row: status, number of frames, places, shares, codes."""
    wait_for_last(OVERLAPS)
    b = tl.program_id(0)
    row = tl.load(rows + b)
    mine = out + b * width
    tl.store(mine, tl.load(numbers + STATUS * num_rows + row).to(tl.int32))
    tl.store(mine + 1, tl.load(numbers + NUM_FRAMES * num_rows + row).to(tl.int32))
    i = tl.arange(0, RING)
    tl.store(mine + 2 + i, tl.load(places + row * RING + i))
    tl.store(mine + 2 + RING + i, tl.load(shares + row * RING + i))
    c = tl.arange(0, CODES)
    code = tl.load(ring + row * num_codes + c, mask=c < num_codes, other=0)
    tl.store(mine + 2 + 2 * RING + c, code, mask=c < num_codes)


class FusedSlotUpdater(SlotUpdater):
    def __init__(
        self,
        table: SlotTable,
        pad_id: int,
        texts: Tensor,  # [ids, hidden]
        changed: Callable[[Tensor, Tensor], Tensor] | None = None,  # if adapters change texts
    ) -> None:
        super().__init__(table, pad_id, changed or (lambda ids, slots: texts[ids]))
        self._texts, self._has_changes = texts, changed is not None
        self._width = table.hidden.shape[1]

    def begin(
        self, rows: Tensor, kind: DrawKind, span: int
    ) -> tuple[SamplingState, tuple[Tensor, KvPositions] | None]:
        table, batch, width = self._table, len(rows), self._width
        num_codes = table.history.shape[1]
        draws = SamplingState(
            kind=kind,
            numbers=table.numbers.new_empty(len(Number), batch),
            scales=table.scales.new_empty(len(Scale), batch),
            history=table.history.new_empty(batch, num_codes),
            is_early=table.history.new_empty(batch),
            adapters=table.adapters_of(rows),
        )
        x = table.code_sum.new_empty(batch, width)
        place = KvPositions(rows, rows.new_empty(batch), rows.new_empty(batch), span)
        begin_kernel[(batch,)](
            rows, table.numbers, table.scales, _bytes(table.history), table.text_ids,
            table.code_sum, self._texts,
            draws.numbers, draws.scales, _bytes(draws.history), _bytes(draws.is_early),
            place.position, place.num_keys, x,
            table.numbers.shape[1], num_codes, table.text_ids.shape[1], table.num_positions,
            self._pad_id, width,
            NUM_NUMBERS=len(Number), NUM_SCALES=len(Scale), IS_READING=span > 0,
            FEW=FEW_BLOCK, CODES=power_of_two(num_codes), WIDTH=power_of_two(width),
            num_warps=4, **options(x),
        )  # fmt: skip
        if span and self._has_changes:
            state = RowState.of(table.numbers.index_select(1, rows))
            x, _ = self._reading(rows, state, span)
        return draws, (x, place) if span else None

    def settle(self, rows: Tensor, draws: SamplingState, states: Tensor | None) -> Tensor:
        if states is None:
            return super().settle(rows, draws, states)
        hidden = torch.empty_like(states)
        table = self._table
        settle_kernel[(len(rows),)](
            rows, draws.numbers, states, table.hidden, hidden, self._width,
            table.watch, table.scores, table.places, table.shares, table.scores.shape[1],
            WIDTH=power_of_two(self._width), RING=RING, BLOCK=SCORE_BLOCK,
            num_warps=4, **options(states),
        )  # fmt: skip
        return hidden

    def end(self, rows: Tensor, draws: SamplingState, spoken: FrameCodes) -> None:
        table, num_groups = self._table, spoken.codes.shape[1]
        end_kernel[(len(rows),)](
            rows, draws.numbers, spoken.codes, spoken.code_sum, _bytes(spoken.is_finite),
            table.numbers, _bytes(table.history), table.ring, table.code_sum,
            table.numbers.shape[1], table.history.shape[1], num_groups, self._width, self._eos,
            RING=RING, GROUPS=power_of_two(num_groups), WIDTH=power_of_two(self._width),
            num_warps=4, **options(table.hidden),
        )  # fmt: skip

    def report(self, rows: Tensor, out: Tensor) -> None:
        table, num_codes = self._table, self._table.ring[0].numel()
        report_kernel[(len(rows),)](
            rows, table.numbers, table.places, table.shares.view(torch.int32), table.ring, out,
            table.numbers.shape[1], num_codes, out.shape[1],
            RING=RING, CODES=power_of_two(num_codes), num_warps=4, **options(table.hidden),
        )  # fmt: skip


def _bytes(tensor: Tensor) -> Tensor:
    """Triton would load one bit of a bool."""
    return tensor.view(torch.int8)
