"""Child processes of tests receive Ctrl-C, and none outlives its test."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import find_children, kill_children, restore_interrupts

SHOW = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(9_999)"])
print("ready", flush=True)
time.sleep(9_999)
"""


def receives_ctrl_c() -> bool:
    done = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, check=True)
    return done.stdout == "True\n"


@pytest.fixture
def ignored_ctrl_c() -> Iterator[None]:
    """Ignore SIGINT, like a background job of a shell."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ignored_ctrl_c")
def test_children_receive_ctrl_c_when_tests_run_in_background() -> None:
    assert not receives_ctrl_c()
    restore_interrupts()
    assert receives_ctrl_c()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_leftover_children_are_killed_with_their_process_group() -> None:
    kept = find_children()
    process = subprocess.Popen(
        [sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    process.stdout.readline()  # the grandchild has started
    assert find_children() - kept == {process.pid}
    kill_children(kept)
    assert find_children() == kept
    assert process.stdout.read() == b""  # the grandchild held it open too
    process.stdout.close()
    process.wait()
