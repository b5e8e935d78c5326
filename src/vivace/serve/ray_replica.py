"""One replica of the server under Ray Serve: arguments, health check and drain.

This module does not import Ray; `ray_app.py` does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from fastapi import FastAPI

from vivace.errors import EngineError, RequestError, TTSError
from vivace.serve.app import create_app
from vivace.serve.context import ServeContext
from vivace.serve.server import RESPONSE_FLUSH_TIMEOUT_S
from vivace.serve.setting_sources import by_field_name, resolve_settings
from vivace.serve.settings import ServeSettings

log = logging.getLogger(__name__)

CPU_STREAMS, GPU_STREAMS = 256, 8  # of one model, if `max_streams` is not set
TARGET_LOAD = 0.75  # share of busy slots above which Ray starts another replica
ROUTE_UPDATE_S = 2.0  # until every proxy stops sending requests to a stopping replica
POLL_S = 0.25
PROXY_SETTINGS = ("host", "port", "workers", "tls_cert", "tls_key", "wyoming_port", "zeroconf")
DEFAULTS: dict[str, Any] = {"max_queue": 64}  # further requests go to another replica
ARGUMENTS = "the application's arguments"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentScale:
    """The number of replicas, their resources, and the concurrent requests of one replica."""

    min_replicas: int
    max_replicas: int
    cpus: float  # per replica
    gpus: float  # per replica; a fraction shares a GPU
    num_slots: int  # concurrent streams of a replica
    max_queue: int  # waiting requests of a replica
    drain_timeout_s: float

    @property
    def max_ongoing(self) -> int:
        return self.num_slots + self.max_queue

    @property
    def target_ongoing(self) -> float:
        """Average concurrent requests above which Ray adds replicas, up to `max_replicas`."""
        return max(1.0, TARGET_LOAD * self.num_slots)

    @property
    def stop_timeout_s(self) -> float:
        """Time from the stop request until Ray kills the replica."""
        return ROUTE_UPDATE_S + self.drain_timeout_s + RESPONSE_FLUSH_TIMEOUT_S


def read_arguments(arguments: Mapping[str, Any]) -> tuple[DeploymentScale, dict[str, Any]]:
    """Return the scale and the settings, by field name, of `NAME=VALUE` arguments.

    `replicas` is a number or MIN-MAX; `cpus` and `gpus` are per replica. Every other name is a
    setting of `vivace serve`. Errors are raised here, in the process that the user sees.
    """
    words = {"replicas": "1", "cpus": 1, **arguments}
    fewest, most = _range(words.pop("replicas"))
    cpus, gpus = _amount("cpus", words.pop("cpus")), words.pop("gpus", None)
    if taken := sorted({*words} & {*PROXY_SETTINGS}):
        raise RequestError(
            f"{taken[0]} is not a setting of a replica: set it in http_options of serve.yaml"
        )
    flags = by_field_name(words, ARGUMENTS)
    # API keys are in the environment of the replicas, perhaps not in that of this process.
    settings = resolve_settings({**flags, "api_key_env": None}, os.environ, defaults=DEFAULTS)
    gpus = _default_gpus(settings) if gpus is None else _amount("gpus", gpus)
    num_models = len(settings.served_models)
    scale = DeploymentScale(
        min_replicas=fewest,
        max_replicas=most,
        cpus=cpus,
        gpus=gpus,
        num_slots=num_models * (settings.max_streams or (GPU_STREAMS if gpus else CPU_STREAMS)),
        max_queue=num_models * settings.max_queue,
        drain_timeout_s=settings.drain_timeout_s,
    )
    return scale, flags


class Replica:
    """A server without a listener: Ray's proxy forwards requests to it."""

    def __init__(self, context: ServeContext) -> None:
        self.context = context
        self._loss: TTSError | None = None
        self._watching: asyncio.Task[None] | None = None
        context.models.recovery.on_lost = self._record_loss

    async def start(self, is_stopping: Callable[[], bool], max_ongoing: int) -> FastAPI:
        """Load the models and return the application. It drains when `is_stopping` returns true."""
        await self.context.models.start()
        loads = [model.tts.engine.capacity() for model in self.context.models.loaded()]
        capacity = sum(load.num_slots + load.max_queue for load in loads)
        if capacity < max_ongoing:
            log.warning(
                "the replica gets up to %d requests at once and has places for %d: set max_streams",
                max_ongoing,
                capacity,
            )
        self._watching = asyncio.get_running_loop().create_task(self._watch(is_stopping))
        return create_app(self.context, sends_request_id=False)  # Ray's proxy adds the header

    def check(self) -> None:
        """Raise an EngineError if Ray should replace this replica."""
        if self._loss is not None:
            raise self._loss
        if not self.context.models.is_ready:  # a full or draining replica is healthy
            raise EngineError("a model of the replica crashed and is being loaded again")

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        await self.context.models.close()

    async def _watch(self, is_stopping: Callable[[], bool]) -> None:
        """Drain as `vivace serve` does at SIGTERM: close idle sockets, finish running streams."""
        while not is_stopping():
            await asyncio.sleep(POLL_S)
        await asyncio.sleep(ROUTE_UPDATE_S)
        await self.context.streams.drain(self.context.settings.drain_timeout_s)

    def _record_loss(self, loss: TTSError) -> None:
        self._loss = loss


def _range(value: object) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", str(value))
    fewest, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= fewest <= most:
        raise RequestError(
            f"replicas must be a number such as 2, or MIN-MAX such as 1-8, not {value!r}"
        )
    return fewest, most


def _amount(name: str, value: object) -> float:
    if not re.fullmatch(r"\d*\.?\d+", str(value)):
        raise RequestError(f"{name} must be a number of 0 or more, such as 0.5, not {value!r}")
    return float(str(value))


def _default_gpus(settings: ServeSettings) -> float:
    """One if this machine has a GPU. In a cluster, set `gpus`."""
    has_gpu = settings.device.startswith("cuda") or torch.cuda.is_available()
    return 1.0 if has_gpu and settings.device != "cpu" else 0.0
