"""One of several equal servers under a supervisor: its arguments, its health and its end.

`ray_app.py` binds it to Ray Serve; nothing here imports Ray.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from fastapi import FastAPI

from vivace.errors import EngineError, RequestError, TTSError
from vivace.serve.app import create_app
from vivace.serve.context import ServeContext
from vivace.serve.settings import ServeSettings, by_field, resolve_settings

log = logging.getLogger(__name__)

CPU_STREAMS, GPU_STREAMS = 256, 8  # what a model takes where `max_streams` is not told
BUSY = 0.75  # of the slots: there another replica is started
ROUTES_S = 2.0  # until every proxy has heard that a replica is about to stop
LAST_WORDS_S = 5.0
POLL_S = 0.25
PROXYS = ("host", "port", "tls_cert", "tls_key", "wyoming_port", "zeroconf")
DEFAULTS: dict[str, Any] = {"max_queue": 64}  # beyond it, a request goes to another replica
ARGUMENTS = "the application's arguments"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How many replicas there are, on what, and how many requests one takes at once."""

    min_replicas: int
    max_replicas: int
    cpus: float  # of one replica
    gpus: float  # of one replica; a fraction shares a GPU
    num_slots: int  # streams that a replica runs at once
    max_queue: int  # that wait in a replica
    drain_timeout_s: float

    @property
    def max_ongoing(self) -> int:
        return self.num_slots + self.max_queue

    @property
    def target_ongoing(self) -> float:
        """On average; with more, replicas are added up to `max_replicas`."""
        return max(1.0, BUSY * self.num_slots)

    @property
    def stop_timeout_s(self) -> float:
        """Until a replica that is told to stop is killed."""
        return ROUTES_S + self.drain_timeout_s + LAST_WORDS_S


def read_arguments(told: Mapping[str, Any]) -> tuple[Scale, dict[str, Any]]:
    """The scale, and the server's settings by their fields' names, of `NAME=VALUE` arguments.

    `replicas` is a number or MIN-MAX, `cpus` and `gpus` are of one replica; every other name is a
    setting of `vivace serve`. Errors are found here, where the user sees them.
    """
    words = {"replicas": "1", "cpus": 1, **told}
    fewest, most = _range(words.pop("replicas"))
    cpus, gpus = _amount("cpus", words.pop("cpus")), words.pop("gpus", None)
    if taken := sorted({*words} & {*PROXYS}):
        raise RequestError(
            f"{taken[0]}: Ray's proxy listens, so it is told there: http_options in serve.yaml"
        )
    flags = by_field(words, ARGUMENTS)
    # Where keys are is the replicas' own affair: they may have them and this process not.
    settings = resolve_settings({**flags, "api_key_env": None}, os.environ, defaults=DEFAULTS)
    gpus = _default_gpus(settings) if gpus is None else _amount("gpus", gpus)
    num_models = len(settings.models)
    scale = Scale(
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
    """A server without a listener of its own."""

    def __init__(self, context: ServeContext) -> None:
        self.context = context
        self._loss: TTSError | None = None
        self._watching: asyncio.Task[None] | None = None
        context.models.recovery.on_lost = self._lose

    async def start(self, is_stopping: Callable[[], bool], max_ongoing: int) -> FastAPI:
        """Load the models; from then on `is_stopping` is asked whether to drain."""
        await self.context.models.start()
        loads = [model.tts.engine.capacity() for model in self.context.models.loaded()]
        room = sum(load.num_slots + load.max_queue for load in loads)
        if room < max_ongoing:
            log.warning(
                "up to %d requests come at once and there is room for %d: tell max_streams",
                max_ongoing,
                room,
            )
        self._watching = asyncio.get_running_loop().create_task(self._watch(is_stopping))
        return create_app(self.context, sends_request_id=False)  # Ray's proxy adds the header

    def check(self) -> None:
        """An EngineError where another replica should take this one's place."""
        if self._loss is not None:
            raise self._loss
        if not self.context.models.is_ready:  # full or draining is no illness
            raise EngineError("a model of the replica broke and is being loaded again")

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        await self.context.models.close()

    async def _watch(self, is_stopping: Callable[[], bool]) -> None:
        """Drain as `vivace serve` does at SIGTERM: idle sockets are closed, speech is finished."""
        while not is_stopping():
            await asyncio.sleep(POLL_S)
        await asyncio.sleep(ROUTES_S)  # a proxy that has not heard yet still sends requests here
        await self.context.streams.drain(self.context.settings.drain_timeout_s)

    def _lose(self, loss: TTSError) -> None:
        self._loss = loss


def _range(value: object) -> tuple[int, int]:
    fewest, _, most = str(value).partition("-")
    try:
        numbers = int(fewest), int(most or fewest)
    except ValueError:
        numbers = 0, 0
    if not 1 <= numbers[0] <= numbers[1]:
        raise RequestError(f"replicas is a number such as 2, or MIN-MAX such as 1-8, not {value!r}")
    return numbers


def _amount(name: str, value: object) -> float:
    try:
        number = float(str(value))
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise RequestError(f"{name} is a number of 0 or more, such as 0.5, not {value!r}")
    return number


def _default_gpus(settings: ServeSettings) -> float:
    """One where this machine has any; for a cluster it is better told."""
    has_gpu = settings.device.startswith("cuda") or torch.cuda.is_available()
    return 1.0 if has_gpu and settings.device != "cpu" else 0.0
