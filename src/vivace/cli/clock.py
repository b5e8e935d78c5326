"""Measures how long this command has run, without the age of a shell that `exec`ed it."""

from __future__ import annotations

import time

# The CPU time so far is the start-up of Python, before this import.
_STARTED = time.perf_counter() - time.process_time()


def since_start() -> float:
    """Seconds since the command started."""
    return time.perf_counter() - _STARTED
