"""The processes of the supervisor: their entry point, and their handle in the supervisor."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from vivace.serve.processes.control import ControlChannel, Values

LINE_BYTES = 1 << 24  # the crash state of the engine has a line for each request with strikes

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


class Child:
    """The handle of a process in the supervisor: the process and its control channel."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self.process, self._control = process, control
        self.started = time.monotonic()
        self.is_ready = False

    def send(self, values: Values) -> None:
        with suppress(OSError):  # the process has ended
            self._control.sendall(json.dumps(values).encode() + b"\n")

    async def read(self, on_values: Callable[[Values], None]) -> int:
        """Read messages until the process ends. Returns its exit code."""
        reader, writer = await asyncio.open_unix_connection(sock=self._control, limit=LINE_BYTES)
        try:
            while line := await reader.readline():
                on_values(json.loads(line))
        except ConnectionError:
            pass
        finally:
            writer.close()
        return await asyncio.to_thread(self.process.wait)
