"""Runs benchmark scripts inside the test process, and the processes that they start by forking."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.support import fork_server
from tests.support.project import ROOT, load_script

FOLDER = ROOT / "benchmarks"
TRITON = (  # import Triton kernels
    *("codec.py", "kernels.py", "layer_chain.py", "stream_sweep.py", "tile_sweep.py"),
)

RUN_FORKED = """
import json, runpy, sys
from pathlib import Path
_, root, replaced, kind, *sys.argv = sys.argv
if kind == "-m":
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    sys.path.insert(0, root)
    from tests.support.project import load_script
    module = load_script(Path(kind))
    sys.argv.insert(0, kind)
    vars(module).update(json.loads(replaced))
    sys.path.insert(0, str(Path(kind).parent))
    module.main()
"""

Run = Callable[..., None]


class Forked:
    """Replaces `subprocess` in a benchmark: Python processes are forked from the fork server.

    `replaced` are names of the script and their values in the forked processes, as JSON.
    """

    PIPE, DEVNULL = subprocess.PIPE, subprocess.DEVNULL
    TimeoutExpired = subprocess.TimeoutExpired

    def __init__(self, **replaced: object) -> None:
        self._replaced = json.dumps(replaced)

    def run(
        self, command: Sequence[str], *, check: bool = True, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        process = self._start(command, **{**options, "stdout": subprocess.PIPE})
        output, error = process.communicate(timeout=300.0)
        assert not check or process.returncode == 0, error
        return subprocess.CompletedProcess(command, process.returncode, output.decode(), error)

    def Popen(self, command: Sequence[str], **options: Any) -> Any:
        if command[0] != sys.executable:
            return subprocess.Popen(command, **options)
        process = self._start(command, **options)
        if process.stderr is not None:
            process.stderr = io.TextIOWrapper(process.stderr)
        return process

    def _start(self, command: Sequence[str], **options: Any) -> Any:
        assert command[0] == sys.executable
        streams = {name: options[name] for name in ("stdout", "stderr") if name in options}
        arguments = [str(ROOT), self._replaced, *command[1:]]
        environment = options.get("env") or os.environ
        return fork_server.server().start(
            RUN_FORKED, arguments, env=environment, start_new_session=True, **streams
        )


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the `main` of a benchmark with these arguments, after replacing names of its module."""
    monkeypatch.syspath_prepend(FOLDER)

    def run_script(name: str, *arguments: object, **replaced: object) -> None:
        if name in TRITON:
            pytest.importorskip("triton")
        module = load_script(FOLDER / name)
        for key, value in replaced.items():
            monkeypatch.setattr(module, key, value)
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        module.main()

    return run_script
