"""Child processes of a test: list them, kill them, and make Ctrl-C work in them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Container
from pathlib import Path

from tests.support import warm


def find_children(parent: int | str = "self") -> set[int]:
    """Processes that it started and has not waited for; none where /proc does not tell."""
    children: set[int] = set()
    for tasks in Path(f"/proc/{parent}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            children.update(map(int, tasks.read_text().split()))
    return children


def kill_children(kept: Container[int]) -> None:
    """With their process groups, where they lead one."""
    for pid in find_children().union(*map(find_children, warm.pids())):
        if pid in kept:
            continue
        with contextlib.suppress(OSError):
            (os.killpg if os.getpgid(pid) == pid else os.kill)(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def restore_interrupts() -> None:
    """A shell starts background jobs with SIGINT ignored, and children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
