"""Thread pools whose tasks are counted for the metrics."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from vivace.serve.observability.metrics import Metrics

T = TypeVar("T")


class CountedThreads(ThreadPoolExecutor):
    """A thread pool that reports the number of its running and waiting tasks."""

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
