"""Refuses speech requests early: before their bodies, voices and encoders are processed.

A request is refused with status 429 if its estimated wait exceeds `--max-wait`, or if the queue has
`--max-queue` entries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from vivace.errors import MIN_RETRY_S
from vivace.serve.errors import RefusedError
from vivace.serve.models.configured import Models
from vivace.serve.models.served_model import ServedModel
from vivace.serve.observability.metrics import Metrics

SPEECH_PATH = "/v1/audio/speech"
CODE = "queue_full"


class StartingStream(Protocol):
    @property
    def has_begun(self) -> bool:
        """Whether the stream has given its first utterance to the engine."""


class LoadEstimate(Protocol):
    """The load of an engine."""

    @property
    def num_waiting(self) -> int: ...

    @property
    def wait_s(self) -> float: ...

    @property
    def is_full(self) -> bool: ...

    def refuses(self, max_wait_s: float) -> bool: ...


@dataclass(slots=True, eq=False)
class AdmittedRequest:
    stream: StartingStream | None = None  # None while body, voice or encoder are processed
    has_whole_text: bool = True  # false for live text, which may pause for minutes

    @property
    def is_expected(self) -> bool:
        """Whether the engine will get the first utterance soon and does not count it yet."""
        if self.stream is None:
            return True
        return self.has_whole_text and not self.stream.has_begun


class Admission:
    """Admits or refuses requests. Event loop thread only."""

    def __init__(self, models: Models, metrics: Metrics, max_wait_s: float) -> None:
        self._models, self._metrics, self._max_wait_s = models, metrics, max_wait_s
        self._admitted: defaultdict[str, set[AdmittedRequest]] = defaultdict(set)  # by model

    def check(self) -> None:
        """Raise RefusedError if every model would refuse a new request."""
        models = self._models.loaded()
        if not models or len(models) < len(self._models.names):
            return  # an unloaded model has no queue
        loads = [self._load(model) for model in models]
        if all(load.refuses(self._max_wait_s) for load in loads):
            raise self._refusal(min(loads, key=lambda load: load.wait_s))

    @contextmanager
    def admit(self, model: ServedModel) -> Iterator[AdmittedRequest]:
        """Reserve a place in the model's queue inside the block, or raise RefusedError."""
        load = self._load(model)
        if load.refuses(self._max_wait_s):
            raise self._refusal(load)
        request, requests = AdmittedRequest(), self._admitted[model.name]
        requests.add(request)
        try:
            yield request
        finally:
            requests.discard(request)

    def _load(self, model: ServedModel) -> LoadEstimate:
        num_expected = sum(request.is_expected for request in self._admitted[model.name])
        return model.engine.capacity(num_expected)

    def _refusal(self, load: LoadEstimate) -> RefusedError:
        self._metrics.failures.labels(429, CODE).inc()
        if load.is_full:
            retry_s = max(MIN_RETRY_S, load.wait_s)
            reason = f"{load.num_waiting} requests are waiting (--max-queue)"
        else:
            retry_s = max(MIN_RETRY_S, load.wait_s - self._max_wait_s)
            reason = (
                f"the estimated wait of {load.wait_s:.1f} s is longer than "
                f"{self._max_wait_s:g} s (--max-wait)"
            )
        message = f"all slots are busy and {reason}; try again in {retry_s:.1f} s"
        return RefusedError(message, status=429, code=CODE, retry_s=retry_s)
