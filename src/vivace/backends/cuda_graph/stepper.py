"""Queues frames for batches of slots and copies the codes of many frames to the host at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivace.backends.base import Places, SlotFrames
from vivace.backends.cuda_graph.buckets import BATCHES, fit, spans
from vivace.backends.cuda_graph.frame import DrawKind, FrameLoop, Layers
from vivace.backends.cuda_graph.graphs import GraphPool, Work
from vivace.backends.cuda_graph.slot_table import RING, STATUSES, GraphSlot, SlotTable
from vivace.backends.cuda_graph.staging import RowNumbers
from vivace.speech import SamplingParams

# Columns of the report to the host: status, number of frames, places, shares, codes.
PLACES, SHARES = slice(2, 2 + RING), slice(2 + RING, 2 + 2 * RING)


class Stepper:
    def __init__(self, table: SlotTable, layers: Layers, graphs: GraphPool, pad_id: int) -> None:
        self._table, self._layers, self._graphs = table, layers, graphs
        self._loop = FrameLoop(layers, pad_id)
        self._spans = spans(table.num_positions)
        self._rows = RowNumbers(BATCHES[-1], table.padding, table.device)
        shape = (BATCHES[-1], table.report_size)
        self._reports = torch.zeros(shape, dtype=torch.int32, device=table.device)

    def start(self, live: Sequence[GraphSlot], num_frames: int) -> Callable[[], list[SlotFrames]]:
        """Queue frames for a batch; the returned call waits for the frames of each slot."""
        assert 0 < num_frames <= RING
        batch = fit(len(live), BATCHES)
        assert batch is not None
        kind = self._layers.kind([slot.sampling for slot in live])
        reach = max(s.num_rows + s.num_frames + s.num_queued for s in live) + num_frames
        span = fit(reach, self._spans) or self._spans[-1]
        num_fresh = int(all(slot.is_fresh for slot in live))
        works = [self.frames(batch, 0, kind)] if num_fresh else []
        for count in self._split(num_frames - num_fresh):
            works.append(self.frames(batch, span, kind, count))
        self._rows.write([slot.row for slot in live], batch)
        for work in works:
            work()
        for slot in live:
            slot.num_queued += num_frames
        report = to_host(self._reports[: len(live)])
        before: list[tuple[int, int]] = []

        def wait() -> list[SlotFrames]:  # may be called again after an interrupt
            rows = report()
            if not before:
                before.extend([(slot.num_frames, slot.num_queued - num_frames) for slot in live])
            steps = zip(live, rows, self._places(rows, before), before, strict=True)
            return [_settle(slot, row, places, *then) for slot, row, places, then in steps]

        return wait

    def _places(
        self, rows: NDArray[np.int32], before: Sequence[tuple[int, int]]
    ) -> Sequence[Places]:
        """The places of each slot's new frames; of all slots as many as of the longest."""
        if self._table.head is None:
            return [()] * len(rows)
        first = np.array(before)[:, 0]
        num_new = int((rows[:, 1] - first).max())
        at = (first[:, None] + np.arange(num_new)) % RING
        row = np.arange(len(rows))[:, None]
        places = rows[row, at + PLACES.start].tolist()
        shares = rows[row, at + SHARES.start].view(np.float32).tolist()
        return [list(zip(*pair, strict=True)) for pair in zip(places, shares, strict=True)]

    def frames(self, batch: int, span: int, kind: DrawKind, count: int = 1) -> Work:
        """A graph of `count` frames, and of the report to the host."""
        rows, reports = self._rows.tensor[:batch], self._reports[:batch]

        def make() -> None:
            for _ in range(count):
                self._loop.make(rows, span, kind)
            self._loop.report(rows, reports)

        return self._graphs.get(("frame", batch, span, *kind, count), make, self._rows.park)

    def warm(self, batch: int, num_positions: int) -> None:
        """Capture the frames of `batch` slots, with top-p and without, for `num_positions`."""
        shorter = [span for span in self._spans if span < num_positions]
        spans = (*shorter, *self._spans[len(shorter) : len(shorter) + 1])
        for sampling in (SamplingParams(), SamplingParams(top_p=0.9)):
            kind = self._layers.kind([sampling])
            self.frames(batch, 0, kind)
            for span in spans:
                for count in {1, self._layers.frames_per_graph}:
                    self.frames(batch, span, kind, count)

    def _split(self, num_frames: int) -> list[int]:
        """Number of frames per graph."""
        most = self._layers.frames_per_graph
        return [most] * (num_frames // most) + [1] * (num_frames % most)


def _settle(
    slot: GraphSlot,
    row: NDArray[np.int32],
    places: Places,  # of the new frames, perhaps followed by others
    num_before: int,
    num_queued: int,
) -> SlotFrames:
    """Update the slot from a report; returns the frames after the first `num_before`."""
    status, num_frames = STATUSES[row[0]], int(row[1])
    if status == "length" and num_frames < slot.max_frames:
        status = "running"  # the slot waits for a page
    ring = row[SHARES.stop :].reshape(RING, -1)
    codes = ring[np.arange(num_before, num_frames) % RING].astype(np.int64)
    slot.status, slot.num_frames, slot.num_queued = status, num_frames, num_queued
    return SlotFrames(codes, status, places[: num_frames - num_before])


def to_host(tensor: Tensor) -> Callable[[], NDArray[Any]]:
    """Start a copy to the host; the returned call waits for it."""
    if tensor.device.type != "cuda":
        copied = tensor.clone()
        return copied.numpy
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    done = torch.cuda.Event()
    done.record()

    def wait() -> NDArray[Any]:
        done.synchronize()
        return host.numpy()

    return wait
