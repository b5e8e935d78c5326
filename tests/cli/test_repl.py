"""Tests of `vivace repl`: one model for all lines; an error or Ctrl-C ends one line only."""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli_harness import (
    LIMIT_S,
    LONG_TEXT,
    Captured,
    assert_fails,
    make_player,
    num_frames,
    played,
    run,
    run_here,
    start,
    wait_until,
    wait_until_asleep,
)
from vivace import TTS

SHORT = ("--seed=1", "--max-frames=3")


def repl(model: Path, content: bytes, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    return run_here("repl", "--model", model, "--device=cpu", *SHORT, *arguments)


def test_repl_writes_numbered_files_with_one_model(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    loads: list[Any] = []
    load = TTS.load

    def counted(*arguments: Any, **options: Any) -> TTS:
        loads.append(arguments)
        return load(*arguments, **options)

    monkeypatch.setattr(TTS, "load", counted)
    (tmp_path / "speech-2.wav").write_bytes(b"precious")
    assert repl(model, "One.\n\n  \nZwölf.\nThree.".encode(), monkeypatch) == 0
    lines = capsys.readouterr().err.splitlines()[::2]  # every second line is a warning
    names = ["speech.wav", "speech-3.wav", "speech-4.wav"]
    assert [line.split(":")[0] for line in lines] == names
    assert all("first audio in" in line for line in lines)
    assert [num_frames(tmp_path / name) for name in names] == [3, 3, 3]
    assert (tmp_path / "speech-2.wav").read_bytes() == b"precious"
    assert len(loads) == 1


def test_exit_ends_repl(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    assert repl(model, b"One.\nexit\nTwo.\n", monkeypatch, "-o", "take.wav") == 0
    assert [path.name for path in tmp_path.glob("*.wav")] == ["take.wav"]
    assert "> " not in capsys.readouterr().out  # no prompt without a terminal


def test_error_of_line_does_not_end_repl(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    assert repl(model, b"[pause 1s]\n\xff\nTwo.\n", monkeypatch) == 0
    wordless, bad, good, _ = capsys.readouterr().err.splitlines()
    assert bad.startswith("vivace: stdin, line 2: not UTF-8")
    assert wordless.startswith("vivace: ")
    assert "has no words" in wordless
    assert good.startswith("speech.wav: ")


def test_repl_prints_one_json_line_per_text(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    assert repl(model, b"One.\nTwo.\n", monkeypatch, "--json") == 0
    assert capsys.readouterr().out.count('"finish_reason": "length"') == 2


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["-o", "-"], "-o - cannot hold several files"),
        (["-o", "x.xyz"], "'x.xyz': unknown file extension"),
        (["--voice=nobody"], "no voice named 'nobody'"),
        (["--play"], "no sound output works"),
    ],
)
def test_invalid_repl_is_one_line_error(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, arguments: list[str], match: str
) -> None:
    assert_fails(repl(model, b"One.\n", monkeypatch, *arguments), capsys, match)


def test_repl_plays_lines_with_loudspeaker(tiny_folder: Path, tmp_path: Path) -> None:
    players = make_player(tmp_path / "bin", "aplay")
    arguments = ["repl", "--model", tiny_folder / "custom_voice", *SHORT]
    done = run(arguments, players=players, input=b"One.\nTwo.\n", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(b"played: first audio in") == 2
    assert [len(content) for content in played(players)] == [3 * 1920 * 2] * 2


def test_ctrl_c_stops_line_and_continues_with_next(tiny_folder: Path, tmp_path: Path) -> None:
    arguments = ["repl", "--model", tiny_folder / "custom_voice", "--seed=1"]
    process = start(arguments, stdin=subprocess.PIPE, cwd=tmp_path)
    assert process.stdin is not None
    process.stdin.write(f"{LONG_TEXT}\n".encode())
    process.stdin.flush()
    wait_until(lambda: any(p.stat().st_size > 50_000 for p in tmp_path.glob(".*.tmp")), "audio")
    process.send_signal(signal.SIGINT)
    wait_until((tmp_path / "speech.wav").exists, "the first file")
    _, error = process.communicate(b"Hello there.\n", timeout=LIMIT_S)
    first, second, *_ = error.decode().splitlines()
    assert first.startswith("speech.wav: ")
    assert first.endswith("cancelled")
    assert second.startswith("speech-2.wav: ")
    assert process.returncode == 0


def test_repl_on_terminal_prints_prompt(tiny_folder: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    arguments = ["repl", "--model", tiny_folder / "custom_voice", *SHORT]
    process = start(arguments, stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path)
    os.close(theirs)
    seen = read_until(ours, b"vivace> ")
    wait_until_asleep(process.pid)  # the prompt appears before Python reads stdin
    process.send_signal(signal.SIGINT)
    seen += read_until(ours, b"vivace> ")
    assert b"Ctrl-D ends" in seen
    os.write(ours, b"Hello.\n")
    assert b"speech.wav: first audio in" in read_until(ours, b"length", b"vivace> ")
    os.write(ours, b"exit\n")
    assert process.wait(timeout=LIMIT_S) == 0
    os.close(ours)
    assert num_frames(tmp_path / "speech.wav") == 3


def read_until(terminal: int, *words: bytes) -> bytes:
    seen = b""
    for word in words:
        while word not in seen:
            assert select.select([terminal], [], [], LIMIT_S)[0], (
                f"{word!r} did not come after {seen!r}"
            )
            seen += os.read(terminal, 4096)
    return seen
