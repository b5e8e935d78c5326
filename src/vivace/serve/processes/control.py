"""The control channel between the supervisor and each of its processes: one JSON object a line.

A process that reads the end of its channel has lost the supervisor, and ends at once.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from vivace.serve.settings import ServeSettings

Values = dict[str, Any]
ENGINE, METRICS = "engine", "metrics"  # names in the folder
# Exit codes: an error, an engine that crashed too often, an engine that lost its device.
FAILED, GAVE_UP, NEEDS_RESTART = 1, 70, 75


@dataclass(frozen=True, slots=True)
class Assignment:
    """The message of the supervisor to a process at its start."""

    settings: ServeSettings
    folder: Path  # of the engine's socket and the metrics
    supervisor: int  # process id
    num_workers: int
    counts_file: int  # inherited
    listener_file: int  # inherited: the engine's Unix socket
    worker: int | None = None  # the number of a worker; None: the engine
    crash_state: str = ""
    is_after_crash: bool = False  # the engine's last process was killed

    def dump(self) -> Values:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        settings = self.settings.model_dump(mode="json")
        return values | {"settings": settings, "folder": str(self.folder)}

    @classmethod
    def load(cls, values: Values) -> Assignment:
        settings, folder = ServeSettings(**values.pop("settings")), Path(values.pop("folder"))
        return cls(settings=settings, folder=folder, **values)

    @property
    def engine_path(self) -> Path:
        return self.folder / ENGINE

    @property
    def metrics_folder(self) -> Path:
        return self.folder / METRICS


class ControlChannel:
    """A process's end of its channel. `watch` reads the supervisor's commands in a thread."""

    def __init__(self, file: int) -> None:
        self._socket = socket.socket(fileno=file)
        self._lines = self._socket.makefile("r", encoding="utf-8")
        self._lock = threading.Lock()
        self._folder: Path | None = None

    def read_assignment(self) -> Assignment:
        """The first line. Signals are left to the supervisor from here on."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        assignment = Assignment.load(json.loads(self._lines.readline() or "{}"))
        self._folder = assignment.folder
        return assignment

    def send(self, **values: Any) -> None:
        with self._lock:
            try:
                self._socket.sendall(json.dumps(values).encode() + b"\n")
            except OSError:
                self._abort()

    def watch(self, on_command: Callable[[Values], None]) -> None:
        threading.Thread(target=self._watch, args=(on_command,), daemon=True).start()

    def _watch(self, on_command: Callable[[Values], None]) -> None:
        for line in self._lines:
            on_command(json.loads(line))
        self._abort()

    def _abort(self) -> None:
        """End this process: the supervisor was killed."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(1)
