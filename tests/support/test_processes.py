"""What the tests rely on when they start processes: a Ctrl-C is heard, and none is left."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import find_children, kill_children, restore_interrupts

TELL = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(9_999)"])
print("ready", flush=True)
time.sleep(9_999)
"""


def hears_ctrl_c() -> bool:
    told = subprocess.run([sys.executable, "-c", TELL], capture_output=True, text=True, check=True)
    return told.stdout == "True\n"


@pytest.fixture
def ignored_ctrl_c() -> Iterator[None]:
    """As in a job that a shell has put into the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ignored_ctrl_c")
def test_children_hear_ctrl_c_where_the_tests_were_started_without_it() -> None:
    assert not hears_ctrl_c()
    restore_interrupts()
    assert hears_ctrl_c()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_children_that_are_left_are_killed_with_their_group() -> None:
    kept = find_children()
    process = subprocess.Popen(
        [sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    process.stdout.readline()  # the grandchild is there
    assert find_children() - kept == {process.pid}
    kill_children(kept)
    assert find_children() == kept
    assert process.stdout.read() == b""  # the grandchild held it open too
    process.stdout.close()
    process.wait()
