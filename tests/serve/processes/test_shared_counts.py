"""Counts in shared memory, written by several processes: here by several maps of one file."""

from __future__ import annotations

import sys

import pytest

if sys.platform != "linux":
    pytest.skip("several workers need Linux", allow_module_level=True)

from vivace.remote.engine_figures import EngineFigures
from vivace.serve.processes.shared_counts import NUM_RATES, SharedCounts, WorkerCounts

FIGURES = EngineFigures(
    num_slots=4, num_running=2, max_queue=8, full_wait_s=1.0, per_request_s=0.5, busy_since=7.0
)


@pytest.fixture
def maps() -> tuple[SharedCounts, WorkerCounts, WorkerCounts]:
    """The engine's map and those of two workers."""
    counts = SharedCounts.create(2, 2)
    other = SharedCounts(counts.file, 2, 2)
    return counts, WorkerCounts(other, 0), WorkerCounts(SharedCounts(counts.file, 2, 2), 1)


Maps = tuple[SharedCounts, WorkerCounts, WorkerCounts]


def test_load_counts_requests_that_other_workers_have_sent(maps: Maps) -> None:
    counts, first, second = maps
    counts.publish_load(1, FIGURES, [0, 0])
    assert first.load(1).read_load(0).wait_s == 0.0
    assert first.load(1).busy_since == 7.0
    assert first.load(0).busy_since is None
    for _ in range(3):
        second.load(1).count_submitted()
    load = first.load(1).read_load(1)
    assert (load.num_running, load.num_waiting, load.num_slots) == (2, 4, 4)
    assert load.wait_s == pytest.approx(1.0 + 2 * 0.5)  # two free slots, two more requests
    counts.publish_load(1, FIGURES, [0, 3])  # the engine has received them
    assert first.load(1).read_load(0).num_waiting == 0
    assert first.load(0).read_load(0).num_slots == 0  # another model


def test_full_queue_of_all_workers_is_full(maps: Maps) -> None:
    counts, first, second = maps
    counts.publish_load(0, FIGURES, [0, 0])
    assert not first.load(0).read_load(9).is_full
    for _ in range(5):
        second.load(0).count_submitted()
    assert first.load(0).read_load(5).is_full


def test_counts_of_an_ended_worker_are_cleared(maps: Maps) -> None:
    counts, first, second = maps
    counts.set_engine(10)
    counts.set_worker(0, 11)
    counts.set_worker(1, 12)
    assert counts.process_ids == [10, 11, 12]
    second.http.add("10.0.0.1", 1)
    second.load(0).count_submitted()
    counts.set_worker(1, 0)
    assert counts.process_ids == [10, 11]
    assert first.http.num_elsewhere() == 0
    assert first.load(0).read_load(0).num_waiting == 0


def test_connections_are_counted_by_address_and_listener(maps: Maps) -> None:
    _, first, second = maps
    first.http.add("10.0.0.1", 1)
    second.http.add("10.0.0.1", 1)
    second.http.add("10.0.0.2", 1)
    assert first.http.num_elsewhere() == 2
    assert first.http.num_elsewhere("10.0.0.1") == 1
    assert second.http.num_elsewhere("10.0.0.1") == 1
    assert first.http.num_elsewhere("10.0.0.3") == 0
    assert first.wyoming.num_elsewhere() == 0
    second.http.add("10.0.0.1", -1)
    assert first.http.num_elsewhere("10.0.0.1") == 0


def test_rate_is_shared_and_refills(maps: Maps) -> None:
    _, first, second = maps
    left = [worker.spend("a", 3, now=100.0) for worker in (first, second, first, second)]
    assert left == [3.0, 2.0, 1.0, 0.0]
    assert first.spend("b", 3, now=100.0) == 3.0
    assert first.spend("a", 3, now=120.0) == pytest.approx(1.0)


def test_full_rate_table_drops_the_client_seen_least_recently(maps: Maps) -> None:
    _, first, _ = maps
    for number in range(NUM_RATES + 100):
        assert first.spend(str(number), 2, now=100.0 + number) == 2.0
    assert first.spend(str(NUM_RATES + 99), 2, now=100.0 + NUM_RATES + 99) == 1.0
