"""Chooses the device, the precision and the number of CPU threads of a model.

PyTorch is imported by the functions that need it: a small model on a CPU may run without it.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import math
import os
import platform
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from threading import Lock, get_ident
from typing import TYPE_CHECKING

from vivace.checkpoint_files import package_file
from vivace.errors import BackendUnavailableError, RequestError
from vivace.speech import THREADS, as_whole_number, shown

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

AUTO = "auto"
DEVICE_TYPES = ("cpu", "cuda", "mps")
SMALL_MODEL_BYTES = 256 << 20  # on disk; released checkpoints are ten times as large
DTYPES = ("float32", "bfloat16")
CGROUP = Path("/sys/fs/cgroup")
SWITCH_INTERVAL_S = 0.0001  # Python's default is 0.005
GPU_FILES = ("nvidia*", "nvhost*", "nvmap", "kfd", "dxg")  # in /dev


def pick_device(name: str = AUTO, num_bytes: int | None = None) -> torch.device:
    """`auto` runs a small model (`num_bytes`) on the CPU, because starting a GPU takes longer."""
    with paused_collector():
        import torch

    if name == AUTO:
        if num_bytes is not None and num_bytes < SMALL_MODEL_BYTES:
            return torch.device("cpu")
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in DEVICE_TYPES:
        raise RequestError(f"no device named {name!r}; try auto, cpu, cuda, cuda:0 or mps")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailableError(
            f"device {name!r} was requested, but PyTorch {torch.__version__} sees no CUDA GPU "
            'here; give device="cpu", or "auto" for the best one'
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise BackendUnavailableError(
            f"device {name!r} was requested, but there are {torch.cuda.device_count()} CUDA GPUs"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise BackendUnavailableError("device 'mps' was requested, but it is not available here")
    return device


def picks_cpu(name: str, num_bytes: int | None) -> bool:
    """Whether `pick_device` picks the CPU. Imports PyTorch only if there may be a GPU."""
    if name != AUTO:
        return name.partition(":")[0] == "cpu"
    return not may_have_gpu() or pick_device(name, num_bytes).type == "cpu"


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


@contextmanager
def early_start(name: str, num_bytes: int | None) -> Iterator[bool]:
    """Create the CUDA context and load PyTorch's libraries in threads, before PyTorch is imported
    inside this context. Yields whether the threads run: they do not need the interpreter's lock.

    The arguments are those of `pick_device`. PyTorch uses the same CUDA context. If it picks
    another device, the CUDA context is destroyed at the end.
    """
    index = None if "torch" in sys.modules else _early_index(name, num_bytes)
    if index is None:
        yield False
        return
    with ThreadPoolExecutor(2, thread_name_prefix="vivace-cuda") as pool:
        future = pool.submit(_retain_context, index)
        pool.submit(_load_libraries)
        try:
            yield True
        finally:
            release = future.result()
            if release is not None:
                release()


def _early_index(name: str, num_bytes: int | None) -> int | None:
    """The number of the GPU that `pick_device` will probably return, or None."""
    is_small = name == AUTO and num_bytes is not None and num_bytes < SMALL_MODEL_BYTES
    kind, _, index = name.partition(":")
    if is_small or kind not in (AUTO, "cuda") or not (index or "0").isdecimal():
        return None
    try:
        has_cuda = may_have_gpu() and package_file("torch", "lib/libtorch_cuda.so").exists()
    except ModuleNotFoundError:
        return None
    return int(index or 0) if has_cuda else None


def _retain_context(index: int) -> Callable[[], object] | None:
    """Create the primary context of a GPU. Returns the call that releases it; None: no GPU."""
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # as PyTorch does
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, context = ctypes.c_int(), ctypes.c_void_p()
    failed = driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), index)
    if failed or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
        return None
    return partial(driver.cuDevicePrimaryCtxRelease_v2, device)


def _load_libraries() -> None:
    """Load PyTorch's libraries in the order of its import, which holds the interpreter's lock."""
    with suppress(OSError):  # the import finds libraries that are installed elsewhere
        dependencies = package_file("torch", "lib/libtorch_global_deps.so")
        ctypes.CDLL(str(dependencies), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(package_file("torch", "lib/libtorch.so")))


def may_have_gpu() -> bool:
    """False if the system has no device files of a GPU (NVIDIA, Jetson, AMD, or a GPU of Windows in
    a Linux machine). Otherwise PyTorch decides whether `auto` picks one."""
    if sys.platform != "linux":
        return True
    return any(found for pattern in GPU_FILES for found in Path("/dev").glob(pattern))


def can_fork(device_type: str, threads: int | None) -> bool:
    """Whether a forked child can compute: a fork loses threads and GPU contexts.

    On ARM, PyTorch uses threads of Arm's library for any number of threads.
    """
    is_arm = platform.machine().lower() in ("aarch64", "arm64")
    return device_type == "cpu" and threads == 1 and not is_arm


def pick_dtype(name: str | torch.dtype, device: torch.device) -> torch.dtype:
    """The talker's precision; the codec is always float32."""
    import torch

    if name == AUTO:
        if device.type != "cuda":
            return torch.float32
        if torch.cuda.get_device_capability(device) >= (8, 0):
            return torch.bfloat16
        _note_no_bfloat16(torch.cuda.get_device_name(device))
        return torch.float32
    key = str(name).removeprefix("torch.")
    if key in ("float16", "half"):
        raise RequestError(
            "dtype float16 is refused: the talker's logits overflow; use bfloat16 or float32"
        )
    if key not in DTYPES:
        raise RequestError(f"no dtype named {key!r}; try one of: {AUTO}, {', '.join(DTYPES)}")
    dtype: torch.dtype = getattr(torch, key)
    return dtype


@cache
def _note_no_bfloat16(name: str) -> None:
    """Log only once per GPU."""
    log.warning("%s has no bfloat16, so the talker runs in float32: slower, and exact", name)


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


def is_context_lost() -> bool:
    """Whether the error has made the GPU unusable for this process."""
    if "torch" not in sys.modules:
        return False
    import torch

    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
