"""Compiles Triton kernels in parallel, before the first launch.

Triton compiles a kernel when it is launched: one after another, half a second each. A
`KernelCompiler` runs the code that launches them with launches turned off, collects the variants
that are missing, and compiles these in threads. Compilers release the interpreter's lock.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import torch

from vivace.backends.cuda_graph.graphs import Work
from vivace.backends.cuda_graph.triton_key import store_triton_key
from vivace.errors import BackendUnavailableError

log = logging.getLogger(__name__)

OLDEST_TRITON = (3, 4)  # first release with programmatic dependent launch
LAUNCHERS = tuple(
    f"vivace.backends.cuda_graph.{name}" for name in ("backend", "layers.fused", "codec.fused")
)
MAX_THREADS = 16  # more wait for the interpreter's lock
_IS_COLLECTING: ContextVar[bool] = ContextVar("is_collecting", default=False)
_COLLECTING = threading.Lock()  # Triton's hook and the kernels belong to the process


@dataclass(slots=True)
class _Job:
    kernel: Any
    specialization: str  # Triton's JSON
    future: Future[None]


Jobs = dict[tuple[str, str], _Job]  # by the kernel's name and Triton's key of its arguments


def is_collecting() -> bool:
    """Whether this thread only collects kernels.

    Code that launches kernels without Triton, or uses their outputs as indices, leaves this out.
    """
    return _IS_COLLECTING.get()


def triton_refusal() -> str | None:
    """Why Triton's kernels cannot be compiled here, or None."""
    try:
        version = metadata.version("triton")
    except metadata.PackageNotFoundError:
        return "triton is not installed"
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_TRITON:
        return f"triton {version} is too old; they need {'.'.join(map(str, OLDEST_TRITON))}"
    return None


def import_kernels() -> None:
    """Import all kernels, and get Triton's hash of itself, which any kernel needs."""
    if triton_refusal() is not None:
        return
    for name in LAUNCHERS:
        import_module(name)
    store_triton_key()


def kernel_compiler(device: torch.device) -> Callable[[Iterable[Work]], None] | None:
    """`KernelCompiler.compile` for this device; None where no Triton kernel can run."""
    if device.type != "cuda" or triton_refusal() is not None:
        return None
    return partial(_try_to_compile, device)


def _try_to_compile(device: torch.device, works: Iterable[Work]) -> None:
    """Compile in parallel. If Triton has changed too much, its launches compile as always."""
    try:
        KernelCompiler(device).compile(works)
    except BackendUnavailableError:
        raise
    except Exception:
        log.warning("kernels are compiled one after another", exc_info=True)


class KernelCompiler:
    def __init__(self, device: torch.device) -> None:
        use_writable_cache()
        self._device = device

    def compile(self, works: Iterable[Work]) -> None:
        """Compile all kernels that these calls launch. The calls run, and launch no kernel.

        Raises BackendUnavailableError with the name of a kernel that does not compile.
        """
        threads = ThreadPoolExecutor(_num_threads(), initializer=self._use_device)
        jobs: Jobs = {}
        with _COLLECTING, threads as pool, self._collecting(jobs, pool):
            for work in works:
                work()
            _settle(jobs, pool)

    def _use_device(self) -> None:
        if self._device.type == "cuda" and self._device.index is not None:
            torch.cuda.set_device(self._device)

    @contextmanager
    def _collecting(self, jobs: Jobs, pool: ThreadPoolExecutor) -> Iterator[None]:
        """Submit each missing variant once instead of launching kernels."""
        from triton import knobs

        before, collector = knobs.runtime.jit_cache_hook, threading.get_ident()

        def collect(*, fn: Any, compile: dict[str, Any], **more: Any) -> bool | None:
            """Called by Triton for a missing variant. True: Triton does not compile it."""
            if threading.get_ident() != collector:
                return before(fn=fn, compile=compile, **more) if before is not None else None
            variant = (fn.name, str(compile["key"]))
            if variant not in jobs:
                made = (fn.jit_function, compile["specialization_data"])
                jobs[variant] = _Job(*made, pool.submit(_load, *made))
            return True

        token = _IS_COLLECTING.set(True)
        knobs.runtime.jit_cache_hook = collect
        try:
            with _launches_off():
                yield
        finally:
            knobs.runtime.jit_cache_hook = before
            _IS_COLLECTING.reset(token)


@contextmanager
def _launches_off() -> Iterator[None]:
    """Threads that collect launch no kernel; other threads launch as always."""
    from triton.runtime.jit import JITFunction

    kernel_type: Any = JITFunction
    run = kernel_type.run

    def run_or_collect(kernel: Any, *given: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        return run(kernel, *given, grid=grid, warmup=warmup or is_collecting(), **named)

    kernel_type.run = run_or_collect
    try:
        yield
    finally:
        kernel_type.run = run


def _num_threads() -> int:
    """The cores that this process may use, up to `MAX_THREADS`."""
    has_affinity = hasattr(os, "sched_getaffinity")  # not on macOS and Windows
    num_cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return min(MAX_THREADS, num_cores)


def _load(kernel: Any, specialization: str) -> None:
    """Compile a variant, or read it from Triton's cache; load machine code and launcher."""
    _ = kernel.preload(specialization).run


def _settle(jobs: Jobs, pool: ThreadPoolExecutor) -> None:
    """Wait for all jobs. Those that failed are tried again without Triton's cache."""
    from triton import knobs

    failed = {variant: job for variant, job in jobs.items() if job.future.exception() is not None}
    if not failed:
        return
    log.info("%d kernels are compiled without the cache", len(failed))
    before = knobs.compilation.always_compile
    knobs.compilation.always_compile = True
    try:
        for job in failed.values():
            job.future = pool.submit(_load, job.kernel, job.specialization)
        for (name, _), job in failed.items():
            if (error := job.future.exception()) is not None:
                reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
                message = f"kernel {name} does not compile: {reason}"
                raise BackendUnavailableError(message) from error
    finally:
        knobs.compilation.always_compile = before


def use_writable_cache() -> None:
    """Let Triton cache in a temporary folder if its own folder cannot be written.

    Triton compiles nothing without a cache folder.
    """
    from triton import knobs

    folder = Path(knobs.cache.dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return
    except OSError as error:
        knobs.cache.dir = tempfile.mkdtemp(prefix="vivace-triton-")
        log.warning(
            "Triton's cache folder cannot be written (%s); using %s", error, knobs.cache.dir
        )
