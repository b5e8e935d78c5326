"""Runs `vivace serve` in a process and reads what it prints."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.support.processes import find_children

LIMIT_S = 120.0


class ServedProcess:
    def __init__(self, *arguments: str, **variables: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vivace", "serve", "--port=0", *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        )
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        return "".join(self._lines)

    @property
    def url(self) -> str:
        """Its address, once it is ready."""
        return self.wait_for(r"ready: (http://[^/\s]+)/")

    def wait_for(self, pattern: str) -> str:
        """The first group of a pattern that a line begins with."""
        deadline = time.monotonic() + LIMIT_S
        while not (found := re.search(f"^{pattern}", self.output, re.MULTILINE)):
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.02)
        return found[1]

    def end(self) -> int:
        """Wait for the end and return the exit code."""
        code = self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        return code

    def kill(self) -> None:
        """Kill the process and its children, which have its pipe open."""
        children = find_children(self.process.pid)
        self.process.kill()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self.end()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as file:
            for line in file:
                self._lines.append(line)


@contextmanager
def serve(*arguments: str, **variables: str) -> Iterator[ServedProcess]:
    served = ServedProcess(*arguments, **variables)
    try:
        yield served
    finally:
        served.kill()
