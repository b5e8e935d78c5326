"""Counts that the processes of a server share in memory: loads, connections and request rates.

Every cell is a float of 8 bytes, which one store writes at once. A cell has one writing process,
except the request rates, which are locked. The supervisor creates the memory, passes its file to
the other processes, and clears the cells of a worker that has ended.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from vivace.remote.engine_figures import EngineFigures, EngineLoad

LOAD_CELLS = len(EngineFigures().values)  # then the received requests of every worker
NUM_BUCKETS = 1_024  # of addresses; addresses that share one are counted together
NUM_RATES = 16_384  # clients with a tracked request rate
RATE_CELLS = 3  # tag, requests left, time of the last request
PROBES = 8  # cells in which a client may be
CELL = 8  # bytes
HTTP, WYOMING = 0, 1  # listeners
CONNECTION_CELLS = 1 + NUM_BUCKETS


class SharedCounts:
    def __init__(self, file: int, num_models: int, num_workers: int) -> None:
        self._file, self.num_models, self.num_workers = file, num_models, num_workers
        self._model_size = LOAD_CELLS + num_workers
        self._worker_size = 1 + num_models + 2 * CONNECTION_CELLS  # process id first
        self._workers_start = 1 + num_models * self._model_size  # after the engine's process id
        self._rates_start = self._workers_start + num_workers * self._worker_size
        size = (self._rates_start + NUM_RATES * RATE_CELLS) * CELL
        if os.fstat(file).st_size < size:
            os.ftruncate(file, size)
        self._cells = memoryview(mmap.mmap(file, size)).cast("d")

    @classmethod
    def create(cls, num_models: int, num_workers: int) -> SharedCounts:
        return cls(os.memfd_create("vivace-counts"), num_models, num_workers)

    @property
    def file(self) -> int:
        return self._file

    def _model(self, model: int) -> int:
        return 1 + model * self._model_size

    def _worker(self, worker: int) -> int:
        return self._workers_start + worker * self._worker_size

    # -- processes -----------------------------------------------------------------------------

    @property
    def process_ids(self) -> list[int]:
        """Of the engine and the workers that run."""
        cells = [0, *map(self._worker, range(self.num_workers))]
        return [int(self._cells[cell]) for cell in cells if self._cells[cell]]

    def set_engine(self, process_id: int) -> None:
        """Note the engine's process, 0 if there is none, which has no load yet."""
        self._clear(0, self._workers_start)
        self._cells[0] = process_id

    def set_worker(self, worker: int, process_id: int) -> None:
        """Note a worker's process, 0 if there is none, which has no connections yet."""
        start = self._worker(worker)
        self._clear(start, start + self._worker_size)
        self._cells[start] = process_id

    def _clear(self, start: int, end: int) -> None:
        for cell in range(start, end):
            self._cells[cell] = 0.0

    # -- loads ---------------------------------------------------------------------------------

    def publish_load(self, model: int, figures: EngineFigures, received: list[int]) -> None:
        """Called by the engine's process. `received` has the requests of each worker so far."""
        start = self._model(model)
        for index, value in enumerate([*figures.values, *received]):
            self._cells[start + index] = float(value)

    def figures(self, model: int) -> EngineFigures:
        start = self._model(model)
        return EngineFigures(*self._cells[start : start + LOAD_CELLS].tolist())

    def count_submitted(self, model: int, worker: int) -> None:
        self._cells[self._worker(worker) + 1 + model] += 1

    def reset_submitted(self, worker: int) -> None:
        """The worker has connected to another engine's process."""
        start = self._worker(worker) + 1
        self._clear(start, start + self.num_models)

    def read_load(self, model: int, num_expected: int) -> EngineLoad:
        """The published load with the requests that came later, of all workers."""
        return self.figures(model).load(num_expected + self._num_unreceived(model))

    def _num_unreceived(self, model: int) -> int:
        received = self._model(model) + LOAD_CELLS
        counts = (
            self._cells[self._worker(worker) + 1 + model] - self._cells[received + worker]
            for worker in range(self.num_workers)
        )
        return int(sum(max(0.0, count) for count in counts))

    # -- connections ---------------------------------------------------------------------------

    def add_connection(self, worker: int, listener: int, address: str, number: int) -> None:
        """Count `number` connections of this worker, or subtract them if it is negative."""
        start = self._connections(worker, listener)
        self._cells[start] += number
        self._cells[start + 1 + _bucket(address)] += number

    def num_elsewhere(self, worker: int, listener: int, address: str | None = None) -> int:
        """Connections of the other workers: all, or those of one address."""
        cell = 0 if address is None else 1 + _bucket(address)
        others = (other for other in range(self.num_workers) if other != worker)
        return int(sum(self._cells[self._connections(other, listener) + cell] for other in others))

    def _connections(self, worker: int, listener: int) -> int:
        return self._worker(worker) + 1 + self.num_models + listener * CONNECTION_CELLS

    # -- request rates -------------------------------------------------------------------------

    def spend(self, name: str, limit: int, now: float) -> float:
        """Take one request from a client's bucket. Returns the requests that were left before."""
        with self._locked():
            cell, tag = self._find_rate(name)
            left, since = self._cells[cell + 1], self._cells[cell + 2]
            if self._cells[cell] != tag:
                left, since = float(limit), now
            left = min(float(limit), left + (now - since) * limit / 60)
            self._cells[cell] = tag
            self._cells[cell + 1], self._cells[cell + 2] = max(left - 1, min(left, 0.0)), now
            return left

    def _find_rate(self, name: str) -> tuple[int, float]:
        """The client's cell, or that of the client that was not seen for longest."""
        digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
        first, tag = (
            int.from_bytes(digest[:4], "little"),
            float(1 + int.from_bytes(digest[4:10], "little")),
        )
        places = ((first + probe) % NUM_RATES for probe in range(PROBES))
        cells = [self._rates_start + RATE_CELLS * place for place in places]
        known = (cell for cell in cells if self._cells[cell] == tag)
        return next(known, min(cells, key=lambda cell: self._cells[cell + 2])), tag

    @contextmanager
    def _locked(self) -> Iterator[None]:
        import fcntl  # not on Windows, where a server has one process

        fcntl.lockf(self._file, fcntl.LOCK_EX)  # of this process, and free when it ends
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)


def _bucket(address: str) -> int:
    digest = hashlib.blake2b(address.encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % NUM_BUCKETS


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """The counts as one worker writes them: its `Peers`."""

    counts: SharedCounts
    worker: int

    def load(self, model: int) -> SharedLoad:
        return SharedLoad(self.counts, self.worker, model)

    @property
    def http(self) -> SharedConnections:
        return SharedConnections(self.counts, self.worker, HTTP)

    @property
    def wyoming(self) -> SharedConnections:
        return SharedConnections(self.counts, self.worker, WYOMING)

    @property
    def announces(self) -> bool:
        return self.worker == 0

    def spend(self, name: str, limit: int, now: float) -> float:
        return self.counts.spend(name, limit, now)


@dataclass(frozen=True, slots=True)
class SharedLoad:
    """The `PublishedLoad` of one model."""

    counts: SharedCounts
    worker: int
    model: int

    def count_submitted(self) -> None:
        self.counts.count_submitted(self.model, self.worker)

    def read_load(self, num_expected: int) -> EngineLoad:
        return self.counts.read_load(self.model, num_expected)

    @property
    def busy_since(self) -> float | None:
        return self.counts.figures(self.model).busy_since or None


@dataclass(frozen=True, slots=True)
class SharedConnections:
    """The connections of one listener in all workers."""

    counts: SharedCounts
    worker: int
    listener: int

    def add(self, address: str, number: int) -> None:
        self.counts.add_connection(self.worker, self.listener, address, number)

    def num_elsewhere(self, address: str | None = None) -> int:
        return self.counts.num_elsewhere(self.worker, self.listener, address)
