"""The entry point of the engine's process and of the workers."""

from __future__ import annotations

import logging
import os
import sys

from vivace.serve.processes.control import ControlChannel

# Replaces the module search path by the supervisor's: `-c` would add the working folder.
START = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from vivace.serve.processes.child import main; main(int(sys.argv[1]))"
)


def child_command(control_file: int) -> list[str]:
    return [sys.executable, "-c", START, str(control_file), *sys.path]


def main(control_file: int) -> None:
    control = ControlChannel(control_file)
    assignment = control.read_assignment()
    if assignment.worker is None:
        from vivace.serve.processes.engine_process import run_engine

        code = run_engine(assignment, control)
    else:
        from vivace.serve.processes.worker_process import run_worker

        code = run_worker(assignment, control)
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)  # does not wait for a model that is being loaded in a thread
