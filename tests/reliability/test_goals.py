"""The table of goals: all its tests exist, and every goal has a control."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.reliability.goals import GOALS, Goal
from tests.reliability.nightly import Report, Result, count_cases, read_report, run_within, tabulate
from tests.support.project import ROOT
from tests.support.websocket_client import wait_until

DOCS = (ROOT / "docs" / "reliability.md").read_text()


def names_in(selector: str) -> set[str]:
    path, _, name = selector.partition("::")
    tree = ast.parse((ROOT / path).read_text())
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    found = {each for each in names if each.startswith("test_")}
    return found & {name} if name else found


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: goal.id)
def test_every_goal_has_tests_and_a_control(goal: Goal) -> None:
    by_selector = {selector: names_in(selector) for selector in goal.tests}
    assert all(by_selector.values()), by_selector
    there = set[str]().union(*by_selector.values())
    assert goal.controls
    assert set(goal.controls) <= there
    assert there - set(goal.controls)
    assert f"({goal.id})" in DOCS


REPORT = """<testsuites><testsuite>
<testcase name="test_a"/><testcase name="test_b[x]"><failure message="no"/></testcase>
<testcase name="test_c[1]"/><testcase name="test_c[2]"><error message="odd"/></testcase>
<testcase name="test_d"><skipped message="no HAProxy"/></testcase>
</testsuite></testsuites>"""


def test_report_names_a_control_that_detected_nothing(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    path.write_text(REPORT)
    result = Result("G0", "trial")
    read_report(path, Goal("G0", "trial", ("x",), ("test_c",)), result)
    assert (result.passed, result.controls) == (1, 1)
    assert result.failed == ["test_b[x]: no"]
    assert result.controls_failed == ["test_c[2]: odd"]
    assert result.skipped == ["test_d: no HAProxy"]
    assert not result.has_passed
    row = list(tabulate([result]))[-1]
    assert "test_b[x]: no" in row
    assert "NOT detected: test_c[2]" in row


def test_goal_passes_with_run_tests_and_detected_controls() -> None:
    assert not Result("G0", "trial").has_passed
    assert Result("G0", "trial", passed=1, controls=1).has_passed
    assert not Result("G0", "trial", passed=1, controls_failed=["c"]).has_passed
    assert not Result("G0", "trial", passed=1, failed=["t"]).has_passed


def test_case_counts_come_from_the_figures() -> None:
    figures: dict[str, dict[str, Any]] = {
        "G0 a": {"requests": 900, "signals": 100},
        "G0 b": {"cases": 50, "p99_ms": 3.0},
    }
    assert count_cases(Result("G0", "trial", passed=2, figures=figures)) == 950
    assert count_cases(Result("G0", "trial", passed=2)) == 2
    first, second = (Result("G0", "trial", passed=1, cases=n, rounds=1) for n in (3, 4))
    first.add(second)
    assert (first.cases, first.rounds, first.passed) == (7, 2, 2)
    assert json.loads(json.dumps(first.as_json()))["has_passed"] is True


def test_timed_goals_run_alone() -> None:
    assert {goal.id for goal in GOALS if goal.is_timed} == {"G2", "G3", "G4", "G10"}


def test_goal_beyond_its_timeout_is_killed_with_its_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    assert run_within(60, ["echo", "here"], dict(os.environ)) == "here\n"
    pid_file.touch()
    command = ["sh", "-c", f"sleep 600 & echo $! > {pid_file}; wait"]
    for limit_s in (1, 4, 16, 64):  # a busy machine may need longer to start the shell
        assert run_within(limit_s, command, dict(os.environ)) is None
        if pid_file.read_text():
            break
    wait_until(lambda: has_ended(int(pid_file.read_text())))


def has_ended(pid: int) -> bool:
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


def test_report_file_is_written_after_every_goal(tmp_path: Path) -> None:
    path = tmp_path / "nightly.json"

    def read() -> dict[str, Any]:
        report: dict[str, Any] = json.loads(path.read_text())
        return report

    first = Report(path)
    first.add(Result("G10", "end", passed=1, controls=1, loads=(0.1, 0.5)))
    first.add(Result("G2", "load", failed=["late"]))
    assert list(read()["goals"]) == ["G2", "G10"]
    assert read()["goals"]["G10"]["loads"] == [0.1, 0.5]
    (run,) = read()["runs"].values()
    assert {"minutes", "load_before", "load_after", "machine"} <= set(run)
    second = Report(path)
    second._machine["date"] += " later"
    second.replace(Result("G2", "load", passed=1, controls=1))
    goals = read()["goals"]
    assert [goals[name]["has_passed"] for name in ("G2", "G10")] == [True, True]
    assert goals["G2"]["run"] != goals["G10"]["run"]
    assert set(read()["runs"]) == {each["run"] for each in goals.values()}
