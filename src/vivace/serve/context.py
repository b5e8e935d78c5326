"""The state that all routes of one server share.

A route raises errors of `vivace.errors`; until the response begins, `app.py` turns them into
OpenAI's error responses.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from vivace.mark.marking import NO_MARKING, Marking
from vivace.serve.models.clones import CloneCache
from vivace.serve.models.configured import Models
from vivace.serve.models.registry import ModelRegistry
from vivace.serve.observability.metrics import Metrics
from vivace.serve.observability.threads import CountedThreads
from vivace.serve.observability.traces import Traces
from vivace.serve.peers import Peers
from vivace.serve.settings import ModelSpec, ServeSettings
from vivace.serve.streams.active import Streams
from vivace.serve.streams.admission import Admission
from vivace.tts import TTS


@dataclass(frozen=True, slots=True)
class ServeContext:
    settings: ServeSettings
    models: Models
    metrics: Metrics
    streams: Streams
    admission: Admission
    encoding_threads: CountedThreads
    clones: CloneCache  # one cache for all protocols
    enrolment_lock: AbstractAsyncContextManager[None]  # one at a time: they share the GPU
    peers: Peers | None = None  # the other workers of this server
    marking: Marking = NO_MARKING  # of all speech, as AI-generated

    @classmethod
    def create(
        cls, settings: ServeSettings, load: Callable[[ModelSpec], TTS] | None = None
    ) -> ServeContext:
        """Create a context whose models `await context.models.start()` loads.

        `load` replaces `TTS.load`.
        """
        metrics = Metrics()
        models = ModelRegistry(settings, metrics, load)
        return cls.over(settings, models, metrics, asyncio.Lock())

    @classmethod
    def over(
        cls,
        settings: ServeSettings,
        models: Models,
        metrics: Metrics,
        enrolment_lock: AbstractAsyncContextManager[None],
        peers: Peers | None = None,
    ) -> ServeContext:
        """Create the context of these models."""
        traces = Traces.open() if settings.otel else None
        return cls(
            settings=settings,
            models=models,
            metrics=metrics,
            streams=Streams(models, metrics, traces, live=settings.live),
            admission=Admission(models, metrics, settings.max_wait_s),
            encoding_threads=CountedThreads(os.cpu_count() or 1, "encode", metrics),
            clones=CloneCache(metrics),
            enrolment_lock=enrolment_lock,
            peers=peers,
            marking=settings.load_marking(),
        )
