"""benchmarks/first_calls.py: which processes failed, and what they differ in."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from tests.benchmarks.conftest import FOLDER, Forked, Run
from tests.support.project import load_script

NAMES = {"write_bytecode": lambda _: None, "read_kernel_log": lambda: None}


@pytest.fixture
def first_calls() -> ModuleType:
    return load_script(FOLDER / "first_calls.py")


@pytest.fixture
def tensor_digests() -> ModuleType:
    return load_script(FOLDER / "tensor_digests.py")


def usual_environment(folder: Path) -> dict[str, str]:
    """Without a folder for bytecode, and with no compiler: a cold start compiles for seconds."""
    path = os.pathsep.join(filter(None, sys.path))
    return {**os.environ, "PYTHONPATH": path, "CXX": "no-such-compiler"}


@pytest.mark.ci
def test_first_calls_command(
    run: Run, tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "first-calls.json"
    run("first_calls.py", tiny_folder / "custom_voice", "--device", "cpu", "--backend", "eager",
        "--streams", 2, "--runs", 2, "--digest-loaded", 1, "--json", path,
        bytecode_environment=usual_environment, subprocess=Forked(), **NAMES)  # fmt: skip
    report = json.loads(path.read_text(encoding="utf-8"))
    rows = report["results"]
    assert [row["is_equal"] for row in rows] == [True] * 3
    assert [set(row["num_tensors"]) for row in rows] == [
        {"loaded", "spoken"}, {"spoken"}, {"loaded", "spoken"},
    ]  # fmt: skip
    assert rows[0]["num_tensors"]["spoken"] > 300
    assert report["not_compared"] == []
    assert report["kernel_log"] is None
    assert "3 of 3 processes ran, 0 failed or differ" in capsys.readouterr().out


def test_process_with_an_error_is_reported(
    run: Run, tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "first-calls.json"
    with pytest.raises(SystemExit, match="1 of 1 processes failed or differ"):
        run("first_calls.py", tiny_folder / "custom_voice", "--device", "cpu", "--backend",
            "unknown", "--runs", 0, "--json", path, bytecode_environment=usual_environment,
            subprocess=Forked(), **NAMES)  # fmt: skip
    error = "BackendUnavailableError: no backend named 'unknown'"
    assert f"run 0 (cold) | error: {error}" in capsys.readouterr().out
    [row] = json.loads(path.read_text(encoding="utf-8"))["results"]
    assert row["error"].startswith(error)


def test_other_speech_and_changed_tensors_fail(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], first_calls: ModuleType
) -> None:
    made = {"speech": "codes 1 samples 1", "digests": {"spoken": {"model.head.weight": 5}}}
    other = {"speech": "codes 1 samples 2", "rebuilt": "codes 1 samples 1", "log": "a\nb"}
    changed = {"digests": {"loaded": {}, "spoken": {"model.head.weight": 6}}}
    calls = [made | other, made, made | changed, made, made]

    def start_process(order: Any, run: int, *_: object) -> Any:
        return sys.modules["first_calls"].FirstCall(run=run, **calls[run])

    with pytest.raises(SystemExit, match="2 of 5 processes failed or differ"):
        run("first_calls.py", tmp_path, "--runs", 4, start_process=start_process, **NAMES)
    summary = capsys.readouterr().out.partition("5 of 5 processes ran, 2 failed or differ\n")[2]
    assert summary.splitlines() == [
        "run 0 (cold) | codes 1 samples 2 differs | new backend: equal | log: b",
        "run 2 | codes 1 samples 1 | spoken: model.head.weight",
        "kernel log: not readable",
    ]


@pytest.mark.parametrize(
    ("output", "end", "error"),
    [
        ("", "exit code -6", "exit code -6"),
        ('{"load_s": 1.0}\n{"load_s": 1.0, "spe', "ended after 9 s", "ended after 9 s"),
        ('{"load_s": 1.0, "speech": "a"}\n', "exit code 0", None),
        ('{"load_s": 1.0, "error": "known"}\n', "exit code 0", "known"),
    ],
)
def test_end_without_speech_is_an_error(
    output: str, end: str, error: str | None, first_calls: ModuleType
) -> None:
    call = first_calls.read_first_call(3, output, "a warning\n", end)
    assert call.error == error
    assert call.load_s == (1.0 if output else None)
    assert call.log == "a warning"


def test_most_common_needs_more_than_half(first_calls: ModuleType) -> None:
    assert first_calls.most_common([1, 2, 1]) == 1
    assert first_calls.most_common([1, 2]) is None
    assert first_calls.most_common([]) is None


def test_core_dumps_need_a_file(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run("first_calls.py", "0.6B-CustomVoice", "--core-dumps", 1)
    assert ended.value.code == 2
    assert "--core-dumps needs --json" in capsys.readouterr().err


# -- digests ------------------------------------------------------------------------------------


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 5)
        self.register_buffer("count", torch.tensor(3))
        self.tables = {"cos": torch.arange(4.0).bfloat16()}
        self._table = torch.zeros(3)  # a name of tensors that calls write
        self.kept = [self.head.weight]  # again


def test_digests_name_every_constant_tensor_once(tensor_digests: ModuleType) -> None:
    found = tensor_digests.digests({"model": Holder()})
    parts = ("count", "head.bias", "head.weight", "tables.cos")
    assert sorted(found) == [f"model.{part}" for part in parts]


@pytest.mark.parametrize("part_bytes", [16, 2**24])
def test_digest_depends_on_every_byte_and_its_place(
    part_bytes: int, tensor_digests: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_digests, "PART_BYTES", part_bytes)
    tensor = torch.arange(40, dtype=torch.uint8).view(5, 8)
    found = {int(tensor_digests.digest(tensor))}
    for place in range(40):
        changed = tensor.clone()
        changed.view(-1)[place] += 1
        found.add(int(tensor_digests.digest(changed)))
    for shift in (1, 8, 16):
        found.add(int(tensor_digests.digest(tensor.view(-1).roll(shift))))
    assert len(found) == 44


def test_changed_tensor_is_reported_by_name(
    first_calls: ModuleType, tensor_digests: ModuleType
) -> None:
    model = Holder()
    calls = []
    for run in range(3):
        if run == 2:
            model.head.weight.data[4, 5] += 1e-3
        digests = {"spoken": tensor_digests.digests(model)}
        calls.append(first_calls.FirstCall(run=run, speech="same", digests=digests))
    expected = first_calls.Expected.of(calls)
    assert expected.changed(calls[2]) == {"spoken": ["head.weight"]}
    assert expected.failed(calls) == [calls[2]]
