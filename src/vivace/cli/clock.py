"""How long this command has run; not the age of the process, which a shell may have `exec`ed."""

from __future__ import annotations

import time

# CPU time so far is Python's start-up, before this import.
_BEGAN = time.perf_counter() - time.process_time()


def since_start() -> float:
    """Seconds since the command began."""
    return time.perf_counter() - _BEGAN
