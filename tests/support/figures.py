"""Stores the figures of reliability tests as JSON in the file of `VIVACE_RELIABILITY_JSON`.

VIVACE_RELIABILITY_JSON=benchmarks/results/reliability.json pytest -m slow tests/reliability
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vivace.cli.bench.machine import machine

Figure = int | float | str


def record(goal: str, **figures: Figure) -> None:
    """Add a goal's figures to the file, or replace them."""
    if not (named := os.environ.get("VIVACE_RELIABILITY_JSON")):
        return
    path = Path(named)
    report: dict[str, Any] = {"benchmark": "reliability"}
    if path.exists():
        report = json.loads(path.read_text())
    report["goals"] = {**report.get("goals", {}), goal: {**figures, "machine": machine()}}
    path.write_text(json.dumps(report, indent=1) + "\n")


def seed_of_round() -> int:
    """The round of `python -m tests.reliability --repeat`, which draws other examples; else 0."""
    return int(os.environ.get("VIVACE_RELIABILITY_ROUND", "0"))


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * len(ordered)))]


def memory_mib() -> float:
    """Resident memory of this process; 0 without /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
