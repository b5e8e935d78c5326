"""Child processes of a test: list them, kill them, and make Ctrl-C work in them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Container
from pathlib import Path

from tests.support import fork_server
from vivace.audio.sandbox import START


def find_children(parent: int | str = "self") -> set[int]:
    """Children of a process that it has not waited for; empty without /proc."""
    children: set[int] = set()
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{parent}/task"):  # faster than Path.glob, twice per test
            with contextlib.suppress(OSError), open(f"/proc/{parent}/task/{task}/children") as file:
                children.update(map(int, file.read().split()))
    return children


def kill_children(kept: Container[int]) -> None:
    """Kill all children except `kept`, with their process groups if they lead one."""
    for pid in find_children().union(*map(find_children, fork_server.pids())):
        if pid in kept or is_sandbox_child(pid):
            continue
        with contextlib.suppress(OSError):
            (os.killpg if os.getpgid(pid) == pid else os.kill)(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def is_sandbox_child(pid: int) -> bool:
    """Whether a decoder pool owns the process, which may outlive a test."""
    try:
        return START.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def restore_interrupts() -> None:
    """Stop ignoring SIGINT: shells start background jobs with SIGINT ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
