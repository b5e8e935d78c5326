"""The progress of `vivace finetune` on a terminal and in a log."""

from __future__ import annotations

import pytest

from vivace.cli.finetune import LOG_EVERY_S, TerminalReporter
from vivace.cli.progress import ProgressLine


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The current time, as the only element."""
    now = [1_000.0]
    monkeypatch.setattr("vivace.cli.finetune.time.monotonic", lambda: now[0])
    return now


def test_preparation_shows_the_time_that_is_left(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    reporter = TerminalReporter(ProgressLine(), is_quiet=False)
    reporter.progress("prepare", 0, 400)
    clock[0] += 2 * LOG_EVERY_S
    reporter.progress("prepare", 10, 400)
    reporter.progress("prepare", 400, 400)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["prepare 0 of 400", "prepare 10 of 400  0:39:00 left", "prepare 400 of 400"]


def test_quiet_run_prints_warnings_only(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = TerminalReporter(ProgressLine(is_quiet=True), is_quiet=True)
    reporter.progress("prepare", 2, 2)
    reporter.note("epoch 1: speaking held-out sentences")
    reporter.warn("rejected recordings: 8")
    assert capsys.readouterr().err == "rejected recordings: 8\n"
