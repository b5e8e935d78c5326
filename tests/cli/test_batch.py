"""Tests of `say --batch`, of concurrent processes, and of terminating signals."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support import fork_server
from tests.support.cli_harness import (
    LIMIT_S,
    LONG_TEXT,
    RUN,
    Captured,
    command_line,
    environment,
    num_frames,
    run,
    run_here,
    start,
    wait_until,
)
from vivace.audio.files import read_audio
from vivace.cli.batch import Batch

SHORT = ("--max-frames=3", "--min-frames=3")


def hidden(folder: Path) -> list[Path]:
    return list(folder.glob(".vivace-*"))


# -- concurrent processes ----------------------------------------------------------------------


def test_three_processes_in_one_folder_write_three_files(model: Path, tmp_path: Path) -> None:
    arguments = ["Hello.", "--json", "--model", model, *SHORT]
    processes = [start([*arguments, f"--seed={seed}"], stdout=subprocess.PIPE) for seed in range(3)]
    facts = []
    for process in processes:
        output, error = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, error
        facts.append(json.loads(output))
    assert len({report["output"] for report in facts}) == 3
    assert run_here("Hello.", "-o", "again.wav", "--seed=2", *SHORT) == 0
    [last] = [report["output"] for report in facts if report["seed"] == 2]
    first, again = (read_audio(tmp_path / name).samples for name in (last, "again.wav"))
    assert np.allclose(first, again, rtol=0, atol=1e-4)  # two processes may round differently
    assert len(list(tmp_path.glob("speech*.wav"))) == 3
    assert hidden(tmp_path) == []


def test_second_process_with_same_file_fails_before_model_loads(
    model: Path, tmp_path: Path, capsys: Captured
) -> None:
    first = start(["-", "--stream", "-o", tmp_path / "x.wav", "--model", model, *SHORT], stdin=-1)
    wait_until(lambda: bool(hidden(tmp_path)), "the claim")
    assert run_here("Hello.", "-o", "x.wav", "--model=not-looked-at") == 1
    assert "cannot write x.wav: another process is writing it" in capsys.readouterr().err
    assert run_here("Hello.", "-o", "x.wav", "--force", *SHORT) == 0  # --force does not wait
    (tmp_path / "x.wav").unlink()
    _, error = first.communicate(b"Hello there.", timeout=LIMIT_S)
    assert first.returncode in (0, 3), error
    assert read_audio(tmp_path / "x.wav").duration_s > 0
    assert hidden(tmp_path) == []


def test_output_created_during_speech_keeps_audio_under_next_name(
    model: Path, tmp_path: Path
) -> None:
    first = start(["-", "--stream", "-o", tmp_path / "x.wav", "--model", model, *SHORT], stdin=-1)
    wait_until(lambda: bool(hidden(tmp_path)), "the claim")
    (tmp_path / "x.wav").write_bytes(b"theirs")
    _, error = first.communicate(b"Hello there.", timeout=LIMIT_S)
    assert first.returncode == 1
    assert f"the audio is in {tmp_path / 'x-2.wav'}".encode() in error
    assert (tmp_path / "x.wav").read_bytes() == b"theirs"
    assert read_audio(tmp_path / "x-2.wav").duration_s > 0


def test_failed_command_releases_file_name(model: Path, tmp_path: Path) -> None:
    assert run_here("Hello.", "--voice=nobody", "-o", "x.wav") == 1
    assert run_here("Hello.", "--voice=nobody") == 1
    assert list(tmp_path.iterdir()) == []


def test_overwritten_file_keeps_mode(model: Path, tmp_path: Path) -> None:
    assert run_here("Hello.", "-o", "x.wav", *SHORT) == 0
    (tmp_path / "x.wav").chmod(0o600)
    assert run_here("Hello.", "-o", "x.wav", "--force", *SHORT) == 0
    assert (tmp_path / "x.wav").stat().st_mode & 0o777 == 0o600


# -- signals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "code", "options"),
    [
        (signal.SIGTERM, 143, ["--stream"]),
        pytest.param(signal.SIGHUP, 129, ["--stream"], marks=pytest.mark.ci),
        pytest.param(signal.SIGINT, 130, [], marks=pytest.mark.ci),
    ],
)
def test_signal_finishes_file_and_reports(
    model: Path, tmp_path: Path, number: signal.Signals, code: int, options: list[str]
) -> None:
    process = start([LONG_TEXT, "--model", model, "-o", tmp_path / "x.wav", *options])
    wait_until(lambda: any(p.stat().st_size > 50_000 for p in tmp_path.glob(".*.tmp")), "audio")
    process.send_signal(number)
    _, error = process.communicate(timeout=LIMIT_S)
    assert process.returncode == code
    *_, report, ended = error.decode().splitlines()  # after warnings about random weights
    assert report.endswith(", cancelled")
    assert ended in ("vivace: interrupted", f"vivace: terminated by {number.name}")
    assert [path.name for path in tmp_path.iterdir()] == ["x.wav"]
    assert read_audio(tmp_path / "x.wav").duration_s > 1


def test_signal_ends_repl(model: Path, tmp_path: Path) -> None:
    process = start(["repl", "--model", model], stdin=subprocess.PIPE, cwd=tmp_path)
    assert process.stdin is not None
    process.stdin.write(f"{LONG_TEXT}\n".encode())
    process.stdin.flush()
    wait_until(lambda: any(p.stat().st_size > 50_000 for p in tmp_path.glob(".*.tmp")), "audio")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 143
    assert read_audio(tmp_path / "speech.wav").duration_s > 1


def test_temporary_file_of_killed_process_is_removed(model: Path, tmp_path: Path) -> None:
    process = start([LONG_TEXT, "--stream", "--model", model, "-o", tmp_path / "x.wav"])
    wait_until(lambda: any(p.stat().st_size > 50_000 for p in tmp_path.glob(".*.tmp")), "audio")
    process.kill()
    process.communicate(timeout=LIMIT_S)
    assert len(hidden(tmp_path)) == 1
    assert run_here("Hello.", "-o", "other.wav", *SHORT) == 0
    assert hidden(tmp_path) == []
    assert run_here("Hello.", "-o", "x.wav", *SHORT) == 0


@pytest.mark.ci
def test_ignored_sighup_stays_ignored(model: Path, tmp_path: Path) -> None:
    command = ["-", "--stream", "--model", model, "-o", tmp_path / "x.wav", *SHORT]
    ignore = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    process = fork_server.server().start(
        ignore + RUN.replace("signal.signal(signal.SIGHUP", "(signal.SIGHUP"),
        list(map(str, command)),
        env=environment(),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_until(lambda: bool(hidden(tmp_path)), "the claim")
    process.send_signal(signal.SIGHUP)
    process.communicate(b"Hello.", timeout=LIMIT_S)
    assert process.returncode in (0, 3)
    assert (tmp_path / "x.wav").exists()


# -- batches -----------------------------------------------------------------------------------


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("\ufeffOne.\n\n  Two.\r\n[pause 1s]\nFive.", encoding="utf-8")
    return path


def test_batch_writes_one_numbered_file_per_line(
    model: Path, tmp_path: Path, lines: Path, capsys: Captured
) -> None:
    assert run_here("--batch", lines, "-o", "out/", "--seed=1", "--json", *SHORT) == 1
    report = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    outputs = {fact["line"]: fact.get("output") for fact in report}
    assert outputs == {1: "out/0001.wav", 3: "out/0003.wav", 4: None, 5: "out/0005.wav"}
    [refused] = [fact for fact in report if fact["line"] == 4]
    assert refused["type"].endswith("Error")
    assert run_here("Two.", "-o", "two.wav", "--seed=1", *SHORT) == 0
    assert (tmp_path / "out/0003.wav").read_bytes() == (tmp_path / "two.wav").read_bytes()
    assert len(list((tmp_path / "out").iterdir())) == 3


def test_batch_skips_existing_files(
    model: Path, tmp_path: Path, lines: Path, capsys: Captured
) -> None:
    lines.write_text("One.\nTwo.\n")
    batch = ("--batch", lines, "-o", "out", "--format=flac", *SHORT)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "0001.flac").write_bytes(b"precious")
    assert run_here(*batch) == 0
    skipped, report, cut = capsys.readouterr().err.splitlines()
    assert skipped == "out/0001.flac: exists, skipped"
    assert report.startswith("out/0002.flac: first audio in ")
    assert cut.startswith("vivace: out/0002.flac: speech was cut at --max-frames 3")
    assert (tmp_path / "out" / "0001.flac").read_bytes() == b"precious"
    assert run_here(*batch, "--model=not-looked-at") == 0  # no line is left
    assert run_here(*batch, "--force") == 0
    assert read_audio(tmp_path / "out" / "0001.flac").duration_s == pytest.approx(0.24)


def test_batch_reads_stdin(model: Path, tmp_path: Path) -> None:
    done = run(["--batch=-", "-o", tmp_path / "out", "--model", model, *SHORT], input=b"A.\nB.\n")
    assert done.returncode == 0, done.stderr
    assert [num_frames(tmp_path / "out" / name) for name in ("0001.wav", "0002.wav")] == [3, 3]


@pytest.mark.ci
def test_interrupted_batch_leaves_complete_files_only(
    model: Path, tmp_path: Path, lines: Path
) -> None:
    lines.write_text(f"One.\n{LONG_TEXT}\nThree.\n")
    process = start(["--batch", lines, "-o", tmp_path / "out", "--model", model, "--seed=1"])
    wait_until(
        lambda: any(p.stat().st_size > 50_000 for p in (tmp_path / "out").glob(".*.tmp")), "audio"
    )
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["0001.wav"]


def test_batch_speaks_lines_concurrently(
    model: Path, tmp_path: Path, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two concurrent streams, both lines start before one of them is finished."""
    import threading

    both = threading.Barrier(2, timeout=LIMIT_S)
    speak_line = Batch._speak

    def wait_for_both(*arguments: object) -> object:
        both.wait()
        return speak_line(*arguments)  # type: ignore[arg-type]

    lines.write_text("One.\nTwo.\n")
    monkeypatch.setattr("vivace.engine.engine.Engine.num_together", 2)
    monkeypatch.setattr(Batch, "_speak", wait_for_both)
    assert run_here("--batch", lines, "-o", "out", "--seed=1", *SHORT) == 0
    assert len(list((tmp_path / "out").iterdir())) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "match"),
    [
        (["--batch=lines.txt"], 2, "needs -o FOLDER"),
        (["Hello.", "--batch=lines.txt", "-o", "out"], 2, "cannot be used with TEXT"),
        (["--batch=none.txt", "-o", "out"], 1, "none.txt: cannot be read"),
        (["--batch=lines.txt", "-o", "lines.txt"], 1, "cannot write to the folder lines.txt"),
        (["--batch=empty.txt", "-o", "out"], 1, "the file has no lines to speak"),
        (["--batch=a.jsonl", "-o", "out"], 1, "a batch has one plain text per line"),
        (["--batch=lines.txt", "-o", "out", "--format=mp9"], 1, "unknown audio format 'mp9'"),
    ],
)
def test_invalid_batch_is_one_line_error(
    model: Path,
    tmp_path: Path,
    lines: Path,
    capsys: Captured,
    arguments: list[str],
    code: int,
    match: str,
) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    try:
        found: object = run_here(*arguments)
    except SystemExit as end:
        found = end.code
    assert found == code
    assert match in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


BECOME = """
import os, sys, time
time.sleep(3)
print(time.time_ns(), file=sys.stderr, flush=True)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.ci
def test_time_to_first_audio_is_that_from_start_of_process_without_shell(
    model: Path, tmp_path: Path
) -> None:
    """A shell replaces its process with its last command."""
    output = ("-o", tmp_path / "x.wav")
    words = command_line(["Hello.", "--json", "--model", model, *output, *SHORT])
    done = subprocess.run(
        [words[0], "-c", BECOME, *words],
        capture_output=True,
        timeout=LIMIT_S,
        env=environment(),
        check=True,
    )
    since_exec_ms = (time.time_ns() - int(done.stderr.split()[0])) / 1e6
    facts = json.loads(done.stdout)
    since_start_ms, since_call_ms = facts["start_to_first_audio_ms"], facts["first_audio_ms"]
    assert since_call_ms + 100 < since_start_ms < since_exec_ms  # includes imports and loading
    assert facts["is_complete"] is False
