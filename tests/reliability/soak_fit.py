"""Measures resource growth: samples of a server and a robust line through them.

A count (open files, threads, tasks) grows if its line rises by two or more over the run. Memory
grows if its line rises by more than 1 KiB per request or by more than `most_mib` over the run. The
first fifth of the samples is warm-up: caches fill and pools start their threads.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations

WARM_UP = 0.2  # share of the samples
MOST_KIB_A_REQUEST = 1.0
MOST_MIB = 8.0
COUNTS = ("files", "threads", "tasks", "children")
MOST_COUNTED = 2.0
MIN_SAMPLES = 8


@dataclass(frozen=True)
class Sample:
    """Resources of an idle server."""

    seconds: float
    requests: int
    memory_kib: int
    files: int
    threads: int
    tasks: int
    children: int = 0


@dataclass(frozen=True)
class Growth:
    """Return the growth of each resource after the warm-up, from its line."""

    requests: int
    seconds: float
    memory_mib: float
    kib_a_request: float
    files: float
    threads: float
    tasks: float
    children: float

    def leaks(self, most_mib: float = MOST_MIB) -> list[str]:
        found = [name for name in COUNTS if getattr(self, name) >= MOST_COUNTED]
        is_heavy = self.kib_a_request > MOST_KIB_A_REQUEST or self.memory_mib > most_mib
        return [*(["memory"] if is_heavy else []), *found]

    def rounded(self) -> dict[str, float]:
        return {name: round(value, 3) for name, value in asdict(self).items()}


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return the Theil-Sen slope: the median of the slopes between all pairs."""
    pairs = combinations(zip(xs, ys, strict=True), 2)
    found = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in pairs if x2 != x1]
    return statistics.median(found)


def measure_growth(samples: Sequence[Sample]) -> Growth:
    if len(samples) < MIN_SAMPLES:
        raise ValueError(f"{MIN_SAMPLES} samples show a slope, {len(samples)} do not; run longer")
    kept = samples[round(len(samples) * WARM_UP) :]
    xs = [float(each.requests) for each in kept]
    span = xs[-1] - xs[0]
    by_name = {
        name: slope(xs, [float(getattr(each, name)) for each in kept])
        for name in ("memory_kib", *COUNTS)
    }
    return Growth(
        requests=round(span),
        seconds=kept[-1].seconds - kept[0].seconds,
        memory_mib=by_name["memory_kib"] * span / 1024,
        kib_a_request=by_name["memory_kib"],
        **{name: by_name[name] * span for name in COUNTS},
    )
