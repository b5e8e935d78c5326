"""Runs `vivace` commands for tests, in this process or in a child process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import wave
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import vivace
from tests.support import fork_server
from vivace.cli.main import main

RUN = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup and background jobs ignore them
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.modules["sounddevice"] = None  # so that nothing is played
from vivace.cli.main import run
run()
"""
FAKE_PLAYER = """#!{python} -IS
import os, signal, sys, time
signal.signal(signal.SIGINT, lambda *_: open(os.path.join({folder!r}, "interrupted"), "w"))
with open(os.path.join({folder!r}, f"{name}-{{os.getpid()}}.raw"), "wb", buffering=0) as file:
    while content := os.read(0, 4096):
        file.write(content)
        {then}
"""
WAV_HEADER_BYTES = 44
LIMIT_S = 300.0  # for what takes seconds on a quiet machine
LONG_TEXT = "The kettle was singing, and nobody had the heart to stop it. " * 200

Captured = pytest.CaptureFixture[str]


def run_here(*arguments: str | Path) -> int:
    return main([str(argument) for argument in arguments])


def say(folder: Path, *arguments: str | Path) -> int:
    return run_here("say", "--model", folder, "--device", "cpu", *arguments)


def command_line(arguments: Sequence[object]) -> list[str]:
    return [sys.executable, "-c", RUN, *map(str, arguments)]


def environment(players: Path | None = None) -> dict[str, str]:
    """Environment in which a process finds the fake players and no other program."""
    own = {"PATH": str(players or ""), "PYTHONPATH": str(Path(vivace.__file__).parents[1])}
    dropped = ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")  # the second makes every start slower
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**kept, **own, "OMP_NUM_THREADS": "1"}


def run(
    arguments: Sequence[object],
    *,
    players: Path | None = None,
    input: bytes | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[bytes]:
    streams = {"stdout": subprocess.PIPE} | ({} if input is None else {"stdin": subprocess.PIPE})
    process = start(arguments, players=players, cwd=cwd, **streams)
    output, error = process.communicate(input, timeout=LIMIT_S)
    assert process.returncode is not None
    return subprocess.CompletedProcess([], process.returncode, output, error)


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new Python process, which must succeed."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
        env=environment(),
    )


def start(
    arguments: Sequence[object], *, players: Path | None = None, **options: Any
) -> fork_server.Process:
    """Start a command in a new process group, which `end_children` kills after the test."""
    return fork_server.server().start(
        RUN,
        [str(argument) for argument in arguments],
        env=environment(players),
        start_new_session=True,
        **{"stderr": subprocess.PIPE} | options,
    )


def wait_until(is_so: Callable[[], bool], what: str, seconds: float = LIMIT_S) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"waited for {what}"
        time.sleep(0.02)


def wait_until_asleep(pid: int) -> None:
    """Wait until a process sleeps in the kernel (a runnable process has state R)."""
    state = Path(f"/proc/{pid}/stat")
    if not state.exists():
        time.sleep(1)
        return
    wait_until(lambda: state.read_text().rsplit(")", 1)[1].split()[0] == "S", "a process to wait")


def make_player(folder: Path, name: str, then: str = "pass") -> Path:
    """A fake player on a separate PATH. It writes its input to NAME-PID.raw."""
    folder.mkdir(exist_ok=True)
    script = FAKE_PLAYER.format(python=sys.executable, folder=str(folder), name=name, then=then)
    (folder / name).write_text(script)
    (folder / name).chmod(0o755)
    return folder


def played(folder: Path) -> list[bytes]:
    """The played samples, without the silence that probes the player."""
    files = sorted(folder.glob("*.raw"), key=lambda path: path.stat().st_mtime_ns)
    contents = [path.read_bytes() for path in files]
    return [content for content in contents if any(content[WAV_HEADER_BYTES:])]


def make_recording(path: Path) -> Path:
    """1.5 s of voice-like sound."""
    t = np.arange(36_000) / 24_000
    soundfile.write(path, 0.2 * np.sin(2 * np.pi * 150 * t) * np.sin(3 * t), 24_000)
    return path


def num_frames(path: Path) -> int:
    with wave.open(str(path)) as file:
        assert file.getparams()[:3] == (1, 2, 24_000)
        return file.getnframes() // 1920


def assert_fails(code: int, captured: Captured, match: str) -> None:
    """Expect one line with the reason on stderr, nothing on stdout, and exit code 1."""
    output = captured.readouterr()
    assert code == 1
    assert output.out == ""
    assert re.fullmatch(rf"vivace: [^\n]*{match}[^\n]*\n", output.err), output.err
