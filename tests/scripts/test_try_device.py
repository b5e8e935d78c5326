"""`scripts/try_device.py` reports every backend, also those that fail, without personal data."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.benchmarks.conftest import Forked
from tests.support.project import ROOT, load_script

TEXT = "Hello."
SCRIPT = ROOT / "scripts" / "try_device.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script(SCRIPT)


def test_trial_speaks_with_int8(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "TEXT", TEXT)
    result = script.run_trial(script.Trial("cpu", "eager", "int8"))
    assert result["finish_reason"] == "stop"
    assert result["is_repeatable"]
    assert result["rms"] > 0.01
    assert result["dtype"] == "float32"
    assert "passes" in result["facts"]


def test_failure_is_reported_without_paths(script: ModuleType, tmp_path: Path) -> None:
    result = script.run_trial(script.Trial("cpu", "eager", model=str(tmp_path)))
    assert result["error"].startswith("CheckpointError: … is missing")
    assert "/" not in result["error"]
    assert script.Trial("cpu", "eager", model=str(tmp_path)).describe()["model"] == "local folder"
    assert script.hide_paths(r"no file C:\Users\me\x.bin") == "no file …"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import os; os._exit(9)", "the process ended with code 9: "),
        ("import time; time.sleep(60)", "no result after 0.5 s"),
    ],
)
def test_crash_and_hang_are_reported(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, error: str
) -> None:
    crashing = tmp_path / "crashing.py"
    crashing.write_text(code)
    monkeypatch.setattr(script, "__file__", str(crashing))
    result = script.start_trial(script.Trial("cpu", "eager"), 0.5 if "sleep" in code else 300.0)
    assert result == {"error": error}


def test_trials_cover_all_backends_and_weights_of_the_cpu(script: ModuleType) -> None:
    trials = script.find_trials("cpu", "some/model")
    assert {trial.weights for trial in trials} == {"full", "int8", "int4"}
    assert {trial.model for trial in trials} == {None, "some/model"}
    assert "eager" in {trial.backend for trial in trials}
    assert not {trial.backend for trial in trials} & {"cuda_graph", "megakernel"}


@pytest.mark.ci
def test_report_has_every_trial_and_no_paths(
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "report.json"
    trials = [script.Trial("cpu", "eager"), script.Trial("cpu", "eager", model=str(tmp_path))]
    monkeypatch.setattr(script, "find_trials", lambda *_: trials)
    monkeypatch.setattr(script, "subprocess", Forked(TEXT=TEXT))
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--device", "cpu", "--json", str(path)])
    script.main()  # forks a process for each trial
    spoken, failed = json.loads(path.read_text())["trials"]
    assert spoken["finish_reason"] == "stop"
    assert failed["error"].startswith("CheckpointError: ")
    shown = capsys.readouterr().out + path.read_text()
    assert str(Path.home()) not in shown
    assert str(tmp_path) not in shown
