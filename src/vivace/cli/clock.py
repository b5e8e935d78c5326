"""How long this process has run."""

from __future__ import annotations

import os
import time
from pathlib import Path

# What ran before this file was imported was the start of Python, which keeps the processor busy.
_BEGAN = time.perf_counter() - time.process_time()


def since_start() -> float:
    """Seconds since the process began: the kernel's where it tells, else ours."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        began = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # field 22, after the boot
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began)
    except (OSError, AttributeError, ValueError, IndexError):
        return time.perf_counter() - _BEGAN
