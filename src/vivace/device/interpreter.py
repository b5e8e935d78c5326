"""Settings of Python's interpreter while a model is loaded and while streams are open."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SWITCH_INTERVAL_S = 0.0001  # Python's default is 0.005


@contextmanager
def paused_collector() -> Iterator[None]:
    """No garbage collection inside the context: imports and loads create many objects that stay.

    The setting is the process's. A concurrent load does not turn it on again.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def short_switch_interval() -> Iterator[None]:
    """Threads get the interpreter's lock sooner inside the context.

    Threads that copy weights or launch kernels need the lock for microseconds between calls without
    it. Each time they would wait for `sys.getswitchinterval()` while another thread imports modules
    or opens streams. The setting is the process's. A context inside a concurrent one changes
    nothing.
    """
    before = sys.getswitchinterval()
    if before <= SWITCH_INTERVAL_S:
        yield
        return
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
