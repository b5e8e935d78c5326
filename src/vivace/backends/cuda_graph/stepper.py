"""Queues frames for batches of slots and copies the codes of many frames to the host at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from vivace.backends.base import Frames, SlotStatus
from vivace.backends.cuda_graph.buckets import BATCHES, fit, spans
from vivace.backends.cuda_graph.graphs import GraphPool, Work
from vivace.backends.cuda_graph.layers.frame import DrawKind, FrameLoop, Layers
from vivace.backends.cuda_graph.slots.staging import HostCopies, RowNumbers
from vivace.backends.cuda_graph.slots.table import RING, STATUSES, GraphSlot, SlotTable
from vivace.speech import SamplingParams

# Columns of the report to the host: status, number of frames, places, shares, codes.
PLACES, SHARES = slice(2, 2 + RING), slice(2 + RING, 2 + 2 * RING)


@dataclass(frozen=True, slots=True)
class QueuedFrames:
    """Frames of a batch that are queued on the device."""

    read: Callable[[], Frames]  # waits for them; may be called again after an interrupt
    last_begins: torch.cuda.Event | None  # before the last graph; None: not on a GPU

    def wait_for_last(self) -> None:
        if self.last_begins is not None:
            self.last_begins.synchronize()


class Stepper:
    def __init__(self, table: SlotTable, layers: Layers, graphs: GraphPool, pad_id: int) -> None:
        self._table, self._layers, self._graphs = table, layers, graphs
        self._loop = FrameLoop(layers, pad_id)
        self._spans = spans(table.num_positions)
        self._copies = HostCopies()
        self._rows = RowNumbers(BATCHES[-1], table.padding, table.device)
        shape = (BATCHES[-1], table.report_size)
        self._reports = torch.zeros(shape, dtype=torch.int32, device=table.device)

    def start(self, live: Sequence[GraphSlot], num_frames: int) -> QueuedFrames:
        """Queue frames for a batch."""
        assert 0 < num_frames <= RING
        batch = fit(len(live), BATCHES)
        assert batch is not None
        kind = self._layers.kind([*{slot.draw: slot.sampling for slot in live}.values()])
        reach = max([s.num_rows + s.num_frames + s.num_queued for s in live]) + num_frames
        span = fit(reach, self._spans) or self._spans[-1]
        num_fresh = int(all(slot.is_fresh for slot in live))
        works = [self.frames(batch, 0, kind)] if num_fresh else []
        for count in self._split(num_frames - num_fresh):
            works.append(self.frames(batch, span, kind, count))
        self._rows.write([slot.row for slot in live], batch)
        *first, last = works
        for work in first:
            work()
        last_begins = torch.cuda.Event() if self._reports.is_cuda else None
        if last_begins is not None:
            last_begins.record()
        last()
        for slot in live:
            slot.num_queued += num_frames
        report = self._copies.start(self._reports[: len(live)])
        before: list[tuple[int, int]] = []

        def read() -> Frames:
            rows = report()
            if not before:
                before.extend([(slot.num_frames, slot.num_queued - num_frames) for slot in live])
            status = _settle(live, rows, before)
            return self._read(rows, np.array([first for first, _ in before]), status)

        return QueuedFrames(read, last_begins)

    def _read(
        self, rows: NDArray[np.int32], first: NDArray[np.int64], status: tuple[SlotStatus, ...]
    ) -> Frames:
        """The frames from number `first` on, of all slots at once."""
        lengths = rows[:, 1] - first
        new = np.arange(lengths.max())
        row, at = np.arange(len(rows))[:, None], (first[:, None] + new) % RING
        ring = rows[:, SHARES.stop :].reshape(len(rows), RING, -1)
        codes = ring[row, at].astype(np.int64)
        if lengths.min() < len(new):
            codes[new >= lengths[:, None]] = 0
        counts = tuple(lengths.tolist())
        if self._table.head is None:
            return Frames(codes, counts, status)
        places = rows[row, at + PLACES.start].tolist()
        shares = rows[row, at + SHARES.start].view(np.float32).tolist()
        made = zip(places, shares, counts, strict=True)
        return Frames(
            codes, counts, status, tuple([*zip(p, s, strict=True)][:n] for p, s, n in made)
        )

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
    live: Sequence[GraphSlot], rows: NDArray[np.int32], before: Sequence[tuple[int, int]]
) -> tuple[SlotStatus, ...]:
    """Update the slots from their reports. `before` has frames that were known and are queued."""
    settled = list[SlotStatus]()
    reports = zip(live, rows[:, 0].tolist(), rows[:, 1].tolist(), before, strict=True)
    for slot, number, num_frames, (_, num_queued) in reports:
        status = STATUSES[number]
        if status == "length" and num_frames < slot.max_frames:
            status = "running"  # the slot waits for a page
        slot.status, slot.num_frames, slot.num_queued = status, num_frames, num_queued
        settled.append(status)
    return tuple(settled)
