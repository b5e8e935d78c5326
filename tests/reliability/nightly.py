"""Runs the goals at their large sizes and says what came of each: cases, result, control."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from goals import Goal

ROOT = Path(__file__).parents[2]
# Figures that count cases; `figures.record` keeps them.
COUNTED = (
    *("cases", "visits", "departures", "messages", "frames", "requests", "headers", "bodies"),
    *("readers", "positions", "routes", "rows"),
)
Figures = dict[str, dict[str, Any]]


@dataclass
class Result:
    """What became of one goal, over all rounds."""

    id: str
    name: str
    passed: int = 0
    failed: list[str] = field(default_factory=list)  # names of tests, with their words
    skipped: list[str] = field(default_factory=list)  # with the reason
    controls: int = 0  # broken servers that were found out
    controls_failed: list[str] = field(default_factory=list)  # that were not
    cases: int = 0
    seconds: float = 0.0
    rounds: int = 0
    figures: Figures = field(default_factory=dict)

    @property
    def is_held(self) -> bool:
        return bool(self.passed) and not self.failed and not self.controls_failed

    def add(self, other: Result) -> None:
        for name in ("passed", "controls", "cases", "seconds", "rounds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.failed += other.failed
        self.controls_failed += other.controls_failed
        self.skipped = other.skipped
        self.figures |= other.figures

    def as_json(self) -> dict[str, Any]:
        return {"is_held": self.is_held, **asdict(self), "seconds": round(self.seconds, 1)}


def run_goal(goal: Goal, number: int, limit_s: float) -> Result:
    """One round in a pytest of its own; rounds after the first draw other examples."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report, figures = Path(folder) / "report.xml", Path(folder) / "figures.json"
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-m", "slow or not slow", f"--junitxml={report}"),
            *([] if number == 0 else ["--hypothesis-profile=search"]),
            *goal.tests,
        ]
        told = {"VIVACE_RELIABILITY_JSON": str(figures), "VIVACE_RELIABILITY_ROUND": str(number)}
        result = Result(goal.id, goal.name, rounds=1)
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, **told, "OMP_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            result.failed.append(f"not over after {limit_s:.0f} s")
        else:
            if not report.exists():
                result.failed.append(done.stdout[-500:] + done.stderr[-500:])
            else:
                read_report(report, goal, result)
        if figures.exists():
            told_figures = json.loads(figures.read_text())["goals"]
            result.figures = {
                name: {key: value for key, value in each.items() if key != "machine"}
                for name, each in told_figures.items()
            }
    result.cases = count_cases(result)
    result.seconds = time.monotonic() - began
    return result


def read_report(report: Path, goal: Goal, result: Result) -> None:
    for case in ET.parse(report).iter("testcase"):  # our own file
        name = case.get("name") or ""
        is_control = name.partition("[")[0] in goal.controls
        bad = case.find("failure") if case.find("failure") is not None else case.find("error")
        skip = case.find("skipped")
        if bad is not None:
            words = (bad.get("message") or "")[:200]
            (result.controls_failed if is_control else result.failed).append(f"{name}: {words}")
        elif skip is not None:
            result.skipped.append(f"{name}: {(skip.get('message') or '')[:120]}")
        elif is_control:
            result.controls += 1
        else:
            result.passed += 1


def count_cases(result: Result) -> int:
    """Those that the figures count, or the tests themselves where these are more."""
    found = [each[key] for each in result.figures.values() for key in COUNTED if key in each]
    return max(sum(found), result.passed)


def tabulate(results: list[Result]) -> Iterator[str]:
    yield "| goal | cases | result | control | minutes |"
    yield "|---|---|---|---|---|"
    for each in sorted(results, key=lambda each: int(each.id[1:])):
        held = f"held ({each.passed} tests)" if each.is_held else "; ".join(each.failed)
        skipped = f", {len(each.skipped)} skipped" if each.skipped else ""
        missed = f", NOT found out: {'; '.join(each.controls_failed)}"
        control = f"{each.controls} found out{missed if each.controls_failed else ''}"
        yield (
            f"| {each.id} {each.name} | {each.cases:,} | {held or 'nothing ran'}{skipped} "
            f"| {control} | {each.seconds / 60:.1f} |"
        )


def summarize(results: list[Result]) -> Counter[str]:
    return Counter("held" if each.is_held else "not held" for each in results)
