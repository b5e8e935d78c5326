"""Gauges of models and GPU memory, read at each scrape."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from vivace.serve.observability.metrics import Metrics

if TYPE_CHECKING:
    from vivace.serve.models.configured import Models
    from vivace.serve.models.served_model import ServedModel


def watch_models(metrics: Metrics, models: Models) -> None:
    """Add the gauges of every model's queue, slots and turn, and of GPU memory."""

    def by_model(read: Callable[[ServedModel], float]) -> Callable[[], dict[str, float]]:
        """Return the values of all models, 0 for unloaded models."""
        zeros = dict.fromkeys(models.names, 0.0)
        return lambda: zeros | {model.name: float(read(model)) for model in models.loaded()}

    def capacity(name: str) -> Callable[[], dict[str, float]]:
        return by_model(lambda model: getattr(model.engine.capacity(), name))

    metrics.watch("ready", "1 if every model is ready.", lambda: {"": float(models.is_ready)})
    metrics.watch("live", "1 if no model hangs.", lambda: {"": float(models.is_live)})
    full = "1 while a queue has been full for --full-timeout."
    metrics.watch("queue_full", full, lambda: {"": float(models.is_full)})
    refused = "Requests that are refused because they were in flight at repeated crashes."
    quarantine = models.recovery.quarantine
    metrics.watch("quarantined_requests", refused, lambda: {"": quarantine.num_rejected})
    for name, field_name, help_text in (
        ("running_streams", "num_running", "Utterances with a slot."),
        ("waiting_streams", "num_waiting", "Utterances in the queue."),
        ("slots", "num_slots", "Utterances that can run concurrently."),
        ("max_queue", "max_queue", "Limit of the queue."),
        ("estimated_wait_seconds", "wait_s", "Estimated wait of a new request."),
    ):
        metrics.watch(name, help_text, capacity(field_name), "model")
    age = "Age of the current turn; 0 while idle."
    metrics.watch("turn_age_seconds", age, by_model(_turn_age_s), "model")
    memory = "GPU memory of PyTorch."
    metrics.watch("device_memory_bytes", memory, _device_memory, "kind", is_summed=True)
    count = threading.active_count
    metrics.watch(
        "process_threads", "Python threads.", lambda: {"": float(count())}, is_summed=True
    )


def _turn_age_s(model: ServedModel) -> float:
    since = model.engine.busy_since
    return 0.0 if since is None else time.perf_counter() - since


def _device_memory() -> dict[str, float]:
    if not torch.cuda.is_initialized():  # a worker must not initialize it
        return {}
    devices = range(torch.cuda.device_count())
    return {
        "allocated": float(sum(map(torch.cuda.memory_allocated, devices))),
        "reserved": float(sum(map(torch.cuda.memory_reserved, devices))),
    }
