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

from vivace.serve.errors import RefusedError
from vivace.serve.metrics import Metrics
from vivace.serve.model import Model
from vivace.serve.models import Models

SPEECH_PATH = "/v1/audio/speech"
MIN_RETRY_S = 0.1
CODE = "queue_full"


class Beginning(Protocol):
    @property
    def has_begun(self) -> bool:
        """Whether the stream has given its first utterance to the engine."""


class Load(Protocol):
    """How full an engine is."""

    @property
    def num_waiting(self) -> int: ...

    @property
    def wait_s(self) -> float: ...

    @property
    def is_full(self) -> bool: ...

    def refuses(self, max_wait_s: float) -> bool: ...


@dataclass(slots=True, eq=False)
class Place:
    """An admitted request."""

    stream: Beginning | None = None  # None: its body, voice or encoder is being processed
    has_whole_text: bool = True  # a live text may have nothing to say for minutes

    @property
    def is_expected(self) -> bool:
        """Whether the engine will get its first utterance soon and does not know it yet."""
        if self.stream is None:
            return True
        return self.has_whole_text and not self.stream.has_begun


class Admission:
    """Used by the event loop's thread only."""

    def __init__(self, models: Models, metrics: Metrics, max_wait_s: float) -> None:
        self._models, self._metrics, self._max_wait_s = models, metrics, max_wait_s
        self._places: defaultdict[str, set[Place]] = defaultdict(set)  # by the model's name

    def check(self) -> None:
        """Raise a RefusedError if every model would refuse a request made now."""
        models = self._models.loaded()
        if not models or len(models) < len(self._models.names):
            return  # a model that is not loaded has no queue
        loads = [self._load(model) for model in models]
        if all(load.refuses(self._max_wait_s) for load in loads):
            raise self._refusal(min(loads, key=lambda load: load.wait_s))

    @contextmanager
    def admit(self, model: Model) -> Iterator[Place]:
        """Hold a place in the model's queue until the block is left, or raise a RefusedError."""
        load = self._load(model)
        if load.refuses(self._max_wait_s):
            raise self._refusal(load)
        place, places = Place(), self._places[model.name]
        places.add(place)
        try:
            yield place
        finally:
            places.discard(place)

    def _load(self, model: Model) -> Load:
        num_expected = sum(place.is_expected for place in self._places[model.name])
        return model.tts.engine.capacity(num_expected)

    def _refusal(self, load: Load) -> RefusedError:
        self._metrics.count_failure(429, CODE)
        if load.is_full:
            retry_s = max(MIN_RETRY_S, load.wait_s)
            reason = f"{load.num_waiting} requests wait already (--max-queue)"
        else:
            retry_s = max(MIN_RETRY_S, load.wait_s - self._max_wait_s)
            reason = (
                f"the estimated wait of {load.wait_s:.1f} s is longer than "
                f"{self._max_wait_s:g} s (--max-wait)"
            )
        message = f"all slots are taken and {reason}; try again in {retry_s:.1f} s"
        return RefusedError(message, status=429, code=CODE, retry_s=retry_s)
