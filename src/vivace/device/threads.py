"""Chooses and sets the number of CPU threads.

PyTorch is imported only if it has been imported already.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, get_ident

from vivace.device.choice import SMALL_MODEL_BYTES
from vivace.errors import RequestError
from vivace.speech import THREADS, as_whole_number, shown

log = logging.getLogger(__name__)

CGROUP = Path("/sys/fs/cgroup")


def pick_threads(num_threads: int | None, device_type: str, num_bytes: int) -> int | None:
    """Number of CPU threads per operation; None keeps PyTorch's setting.

    Small models use one thread. Their operations take microseconds, and waiting for another thread
    on a busy machine makes them hundreds of times slower. For the same reason no more threads are
    used than processors.
    """
    if num_threads is not None:
        number = as_whole_number("threads", num_threads)
        if number not in THREADS:
            raise RequestError(f"threads must be {THREADS}, not {shown(num_threads)}")
        most = count_processors()
        if number > most:
            log.warning("threads is %d; this process may use %d processor(s)", number, most)
        return min(number, most)
    return 1 if device_type == "cpu" and num_bytes < SMALL_MODEL_BYTES else None


def default_threads() -> int:
    """PyTorch's number of threads: OMP_NUM_THREADS, or the cores that this process may use. At most
    one per processor."""
    if "torch" in sys.modules:
        import torch

        number = torch.get_num_threads()
    else:
        named = os.environ.get("OMP_NUM_THREADS", "")
        number = int(named) if named.isdecimal() else 0
    return min(number or _count_cores(), count_processors())


def count_processors(cgroup: Path = CGROUP) -> int:
    """Processors that this process may use: its affinity, within the CPU quota of its container."""
    has_affinity = hasattr(os, "sched_getaffinity")  # not on macOS and Windows
    allowed = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    try:
        quota, period = _read_quota(cgroup)
    except (OSError, ValueError):  # there is no quota, or it is "max"
        return allowed
    return max(1, min(allowed, math.ceil(quota / period))) if min(quota, period) > 0 else allowed


def _read_quota(cgroup: Path) -> tuple[int, int]:
    """CPU time per period, in microseconds, of version 2 or 1 of control groups."""
    path = cgroup / "cpu.max"
    if path.is_file():
        texts = path.read_text().split()
    else:
        texts = [(cgroup / f"cpu/cpu.cfs_{name}_us").read_text() for name in ("quota", "period")]
    quota, period = map(int, texts)
    return quota, period


def _count_cores() -> int:
    """Cores, not their hardware threads, where Linux shows them."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    usable = os.sched_getaffinity(0)
    folder = Path("/sys/devices/system/cpu")
    try:
        return len(
            {(folder / f"cpu{one}/topology/thread_siblings_list").read_text() for one in usable}
        )
    except OSError:
        return len(usable)


# Global, because PyTorch's default is global: the old and the new number by thread id.
_changed_threads: dict[int, tuple[int, int]] = {}
_threads_lock = Lock()


@contextmanager
def use_threads(num_threads: int | None) -> Iterator[None]:
    """Use `num_threads` threads inside the context and restore the number afterwards.

    A nested context has no effect, nor does one that begins before PyTorch is imported. PyTorch
    keeps the number per thread, but a thread that has not read it yet gets the number that any
    thread set last, which may be a temporary one.
    """
    thread = get_ident()
    if num_threads is None or thread in _changed_threads or "torch" not in sys.modules:
        yield
        return
    import torch

    with _threads_lock:
        found = torch.get_num_threads()
        before = next((old for old, new in _changed_threads.values() if new == found), found)
        _changed_threads[thread] = (before, num_threads)
        torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        with _threads_lock:
            torch.set_num_threads(_changed_threads.pop(thread)[0])
