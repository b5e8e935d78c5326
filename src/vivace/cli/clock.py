"""How long this command has run.

Not since the process began: a shell may have become this process (`exec`) long after its own start.
"""

from __future__ import annotations

import time

# Before this file was imported Python started, which keeps the processor busy.
_BEGAN = time.perf_counter() - time.process_time()


def since_start() -> float:
    """Seconds since the command began."""
    return time.perf_counter() - _BEGAN
