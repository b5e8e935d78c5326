"""Gauges: what models, pools and the process itself use at the moment."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from vivace.serve.metrics import Metrics

if TYPE_CHECKING:
    from vivace.serve.model import Model
    from vivace.serve.models import Models

T = TypeVar("T")
PROC = Path("/proc/self")


def watch_process(metrics: Metrics) -> None:
    """By the names that Prometheus' own clients use; what the system does not say is left out."""
    started = time.time()
    cpu = "Seconds of processor time, of user and system."
    for name, help_text, read, kind in (
        ("resident_memory_bytes", "Resident memory.", _memory_bytes, "gauge"),
        ("open_fds", "Open files and sockets.", _num_files, "gauge"),
        ("threads", "Threads of Python.", threading.active_count, "gauge"),
        ("cpu_seconds_total", cpu, time.process_time, "counter"),
        ("start_time_seconds", "When it started.", lambda: started, "gauge"),
    ):
        metrics.watch(f"process_{name}", help_text, _level(read), kind=kind)


def _level(read: Callable[[], float]) -> Callable[[], dict[str, float]]:
    def level() -> dict[str, float]:
        try:
            return {"": read()}
        except OSError:  # there is no /proc
            return {}

    return level


def _memory_bytes() -> float:
    num_pages = int((PROC / "statm").read_text("ascii").split()[1])
    return float(num_pages * os.sysconf("SC_PAGE_SIZE"))


def _num_files() -> float:
    return float(len(os.listdir(PROC / "fd")))


class CountedThreads(ThreadPoolExecutor):
    """A pool that says how many of its tasks run or wait."""

    def __init__(self, num_threads: int, name: str, metrics: Metrics | None = None) -> None:
        super().__init__(num_threads, f"vivace-{name}")
        self._num_tasks, self._count_lock = 0, threading.Lock()
        if metrics is not None:
            metrics.watch_pool(name, lambda: (self._num_tasks, num_threads))

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future = super().submit(fn, *args, **kwargs)
        self._add(1)
        future.add_done_callback(lambda _: self._add(-1))
        return future

    def _add(self, number: int) -> None:
        with self._count_lock:
            self._num_tasks += number


def watch_models(metrics: Metrics, models: Models) -> None:
    """The gauges of every model's queue, slots and turn, and of the GPU's memory."""

    def by_model(read: Callable[[Model], float]) -> Callable[[], dict[str, float]]:
        """The values of all models; 0 for those that are not loaded."""
        nothing = dict.fromkeys(models.names, 0.0)
        return lambda: nothing | {model.name: float(read(model)) for model in models.loaded()}

    def capacity(name: str) -> Callable[[], dict[str, float]]:
        return by_model(lambda model: getattr(model.tts.engine.capacity(), name))

    metrics.watch("ready", "Every model can be asked.", lambda: {"": float(models.is_ready)})
    metrics.watch("live", "No model hangs.", lambda: {"": float(models.is_live)})
    metrics.watch("queue_full", "A queue was full for long.", lambda: {"": float(models.is_full)})
    refused = "Requests that are refused because engines died with them."
    quarantine = models.recovery.quarantine
    metrics.watch("quarantined_requests", refused, lambda: {"": quarantine.num_refused})
    for name, field_name, help_text in (
        ("running_streams", "num_running", "Utterances that have a slot."),
        ("waiting_streams", "num_waiting", "Utterances that wait for a slot."),
        ("slots", "num_slots", "Utterances that can be spoken at once."),
        ("max_queue", "max_queue", "Utterances that may wait for a slot."),
        ("estimated_wait_seconds", "wait_s", "Estimated wait of a request made now."),
    ):
        metrics.watch(name, help_text, capacity(field_name), "model")
    metrics.watch("turn_age_seconds", "Of the turn under way; 0: idle.", by_model(_age_s), "model")
    metrics.watch("device_memory_bytes", "Of PyTorch on the GPU.", _device_memory, "kind")


def _age_s(model: Model) -> float:
    since = model.tts.engine.busy_since
    return 0.0 if since is None else time.perf_counter() - since


def _device_memory() -> dict[str, float]:
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return {}
    devices = range(torch.cuda.device_count())
    return {
        "allocated": float(sum(map(torch.cuda.memory_allocated, devices))),
        "reserved": float(sum(map(torch.cuda.memory_reserved, devices))),
    }
