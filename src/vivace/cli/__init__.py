"""The `vivace` command. Importing the package starts the clock of `since_start`."""

from __future__ import annotations

import time

# The CPU time so far is the start-up of Python, before this import.
_STARTED = time.perf_counter() - time.process_time()


def since_start() -> float:
    """Seconds since the command started, without the age of a shell that `exec`ed it."""
    return time.perf_counter() - _STARTED
