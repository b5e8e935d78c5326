"""Creates the CUDA context and loads PyTorch's libraries while the process does other work."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial

from vivace.checkpoint_files import package_file
from vivace.device.choice import AUTO, SMALL_MODEL_BYTES, may_have_gpu


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


def _early_index(name: object, num_bytes: int | None) -> int | None:
    """The number of the GPU that `pick_device` will probably return, or None."""
    if not isinstance(name, str):
        return None  # `pick_device` reports it
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
