"""The channel between the supervisor and its processes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("several workers need Linux", allow_module_level=True)

from tests.support.served_process import LIMIT_S
from vivace.serve.processes.control import Assignment
from vivace.serve.settings import ModelSpec, ServeSettings

PROCESS = """
import sys, time
from vivace.serve.processes.control import ControlChannel
control = ControlChannel(int(sys.argv[1]))
control.read_assignment()
control.watch(print)
control.send(ready="here")
time.sleep(1_000)
"""


def make_assignment(folder: Path) -> Assignment:
    models = (ModelSpec("base", "here"),)
    settings = ServeSettings(
        port=0, models=models, voices=folder, api_keys=("k3y",), max_streams=1, max_queue=0
    )
    return Assignment(settings, folder, 1, 2, 3, 4, worker=1, crash_state="state")


def test_assignment_is_the_same_after_json(tmp_path: Path) -> None:
    assignment = make_assignment(tmp_path)
    assert Assignment.load(json.loads(json.dumps(assignment.dump()))) == assignment


def test_process_ends_with_the_supervisor_and_removes_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "sockets"
    folder.mkdir()
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", PROCESS, str(theirs.fileno())], pass_fds=[theirs.fileno()]
            )
        ours.settimeout(LIMIT_S)
        ours.sendall(json.dumps(make_assignment(folder).dump()).encode() + b"\n")
        assert json.loads(ours.recv(1_000)) == {"ready": "here"}
        assert process.poll() is None
        assert folder.exists()
    assert process.wait(LIMIT_S) == 1
    assert not folder.exists()
