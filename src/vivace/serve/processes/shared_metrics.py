"""Metrics of all processes of a server, added up at each scrape.

Every process writes its counters and histograms to files that `prometheus_client` maps into memory.
The files of a process that has ended are still read, so that counters never decrease; only its
gauges are removed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from vivace.serve.processes.shared_counts import SharedCounts

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # set before `prometheus_client` is imported
CPU_TIME, START_TIME = "process_cpu_seconds", "process_start_time_seconds"
CHILD_TIMES = slice(13, 15)  # of /proc/PID/stat after the name: times of children that have ended


class ServerMetrics:
    """The `SharedMetrics` of one worker."""

    def __init__(self, folder: Path, counts: SharedCounts, supervisor: int) -> None:
        self._folder, self._counts, self._supervisor = folder, counts, supervisor

    def registry(self, gauges: Collector) -> CollectorRegistry:
        registry = CollectorRegistry()
        MultiProcessCollector(registry, str(self._folder))
        registry.register(gauges)
        registry.register(_ProcessSums([self._supervisor, *self._counts.process_ids]))
        return registry


def forget_process(folder: Path, process_id: int) -> None:
    """Remove the gauges of a process that has ended."""
    mark_process_dead(process_id, str(folder))


class _ProcessSums(Collector):
    """Memory, files and CPU time of all processes. The first one is the supervisor."""

    def __init__(self, process_ids: list[int]) -> None:
        self._process_ids = process_ids

    def collect(self) -> Iterator[Metric]:
        sums: dict[str, Metric] = {}
        for process_id in self._process_ids:
            for family in _measure(process_id):
                if family.name in sums:
                    _add(sums[family.name], family.samples)
                else:
                    sums[family.name] = family
        if CPU_TIME in sums:
            family = sums[CPU_TIME]
            ended_s = _ended_seconds(self._process_ids[0])
            family.samples = [one._replace(value=one.value + ended_s) for one in family.samples]
        yield from sums.values()


def _measure(process_id: int) -> list[Metric]:
    collector = ProcessCollector(pid=lambda: process_id, registry=None)
    return list(collector.collect())


def _add(family: Metric, more: list[Sample]) -> None:
    join = min if family.name == START_TIME else sum
    values = zip(family.samples, more, strict=True)
    family.samples = [old._replace(value=join((old.value, new.value))) for old, new in values]


def _ended_seconds(supervisor: int) -> float:
    """CPU time of the supervisor's children that have ended."""
    try:
        fields = Path(f"/proc/{supervisor}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[CHILD_TIMES])) / os.sysconf("SC_CLK_TCK")
