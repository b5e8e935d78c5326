"""Runs the goals at their large sizes and reports cases, result and control of each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.reliability.goals import Goal
from tests.support.project import ROOT
from vivace.cli.bench.machine import machine

# Names of recorded figures that count cases.
COUNTED = (
    *("cases", "visits", "departures", "messages", "frames", "requests", "headers", "bodies"),
    *("readers", "positions", "routes", "rows"),
)
Figures = dict[str, dict[str, Any]]


@dataclass
class Result:
    """The result of one goal over all rounds."""

    id: str
    name: str
    passed: int = 0
    failed: list[str] = field(default_factory=list)  # test names with their messages
    skipped: list[str] = field(default_factory=list)  # test names with the reason
    controls: int = 0  # detected
    controls_failed: list[str] = field(default_factory=list)  # not detected
    cases: int = 0
    seconds: float = 0.0
    rounds: int = 0
    loads: tuple[float, float] = (0.0, 0.0)  # one-minute averages before and after
    figures: Figures = field(default_factory=dict)

    @property
    def has_passed(self) -> bool:
        return bool(self.passed) and not self.failed and not self.controls_failed

    def add(self, other: Result) -> None:
        for name in ("passed", "controls", "cases", "seconds", "rounds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.failed += other.failed
        self.controls_failed += other.controls_failed
        self.skipped, self.loads = other.skipped, (self.loads[0], other.loads[1])
        self.figures |= other.figures

    def as_json(self) -> dict[str, Any]:
        return {"has_passed": self.has_passed, **asdict(self), "seconds": round(self.seconds, 1)}


def load_average() -> float:
    return round(os.getloadavg()[0], 1)


def run_goal(goal: Goal, number: int) -> Result:
    """Run one round in a pytest process; later rounds draw other examples."""
    began, load, result = time.monotonic(), load_average(), Result(goal.id, goal.name, rounds=1)
    with tempfile.TemporaryDirectory() as folder:
        report, figures = Path(folder) / "report.xml", Path(folder) / "figures.json"
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-m", "slow or not slow", f"--junitxml={report}"),
            *([] if number == 0 else ["--hypothesis-profile=search"]),
            *goal.tests,
        ]
        extra = {"VIVACE_RELIABILITY_JSON": str(figures), "VIVACE_RELIABILITY_ROUND": str(number)}
        said = run_within(goal.limit_s, command, {**os.environ, **extra, "OMP_NUM_THREADS": "1"})
        if said is None:
            result.failed.append(f"not over after {goal.limit_s:.0f} s")
        elif report.exists():
            read_report(report, goal, result)
        else:
            result.failed.append(said[-1_000:])
        if figures.exists():
            told_figures = json.loads(figures.read_text())["goals"]
            result.figures = {
                name: {key: value for key, value in each.items() if key != "machine"}
                for name, each in told_figures.items()
            }
    result.cases = count_cases(result)
    result.seconds, result.loads = time.monotonic() - began, (load, load_average())
    return result


def run_within(limit_s: float, command: list[str], environment: dict[str, str]) -> str | None:
    """Return the output, or None if the command was killed with its children at the timeout."""
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            return process.communicate(timeout=limit_s)[0]
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def read_report(report: Path, goal: Goal, result: Result) -> None:
    for case in ET.parse(report).iter("testcase"):  # written by this module
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
    """Return the cases that the figures count, or the number of tests if it is larger."""
    found = [each[key] for each in result.figures.values() for key in COUNTED if key in each]
    return max(sum(found), result.passed)


def tabulate(results: list[Result]) -> Iterator[str]:
    yield "| goal | cases | result | control | minutes |"
    yield "|---|---|---|---|---|"
    for each in sorted(results, key=lambda each: int(each.id[1:])):
        outcome = f"passed ({each.passed} tests)" if each.has_passed else "; ".join(each.failed)
        skipped = f", {len(each.skipped)} skipped" if each.skipped else ""
        missed = f", NOT detected: {'; '.join(each.controls_failed)}"
        control = f"{each.controls} detected{missed if each.controls_failed else ''}"
        yield (
            f"| {each.id} {each.name} | {each.cases:,} | {outcome or 'nothing ran'}{skipped} "
            f"| {control} | {each.seconds / 60:.1f} |"
        )


def summarize(results: list[Result]) -> Counter[str]:
    return Counter("passed" if each.has_passed else "failed" for each in results)


class Report:
    """Write the results so far. Called after every goal, so that a kill loses only one goal."""

    def __init__(self, path: Path | None) -> None:
        self.results: dict[str, Result] = {}
        self._path, self._began, self._load = path, time.monotonic(), load_average()
        self._machine = machine()
        self._lock = threading.Lock()

    def add(self, result: Result) -> None:
        with self._lock:
            if result.id in self.results:
                self.results[result.id].add(result)
            else:
                self.results[result.id] = result
            self._write()

    def replace(self, result: Result) -> None:
        with self._lock:
            self.results[result.id] = result
            self._write()

    def _write(self) -> None:
        """Merge this run into the file; earlier results of other goals stay."""
        if self._path is None:
            return
        found = json.loads(self._path.read_text()) if self._path.exists() else {}
        began = self._machine["date"]
        measured = {each.id: {**each.as_json(), "run": began} for each in self.results.values()}
        run = {
            "minutes": round((time.monotonic() - self._began) / 60, 1),
            "load_before": self._load,
            "load_after": load_average(),
            "machine": self._machine,
        }
        goals = {**found.get("goals", {}), **measured}
        runs = {**found.get("runs", {}), began: run}
        used = {goal.get("run") for goal in goals.values()}
        report = {
            "benchmark": "reliability-nightly",
            "runs": {name: each for name, each in runs.items() if name in used},
            "goals": dict(sorted(goals.items(), key=lambda item: int(item[0][1:]))),
        }
        self._path.write_text(json.dumps(report, indent=1) + "\n")
