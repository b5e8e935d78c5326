"""The state that all routes of one server share.

A route raises errors of `vivace.errors`; until the response begins, `app.py` turns them into
OpenAI's error responses.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass

from vivace.serve.admission import Admission
from vivace.serve.clones import CloneCache
from vivace.serve.gauges import CountedThreads
from vivace.serve.metrics import Metrics
from vivace.serve.model_registry import ModelRegistry
from vivace.serve.otel import Traces
from vivace.serve.settings import ModelSpec, ServeSettings
from vivace.serve.streams import Streams
from vivace.tts import TTS


@dataclass(frozen=True, slots=True)
class ServeContext:
    settings: ServeSettings
    models: ModelRegistry
    metrics: Metrics
    streams: Streams
    admission: Admission
    encoding_threads: CountedThreads
    clones: CloneCache  # one cache for all protocols
    enrolment_lock: asyncio.Lock  # one enrolment at a time: enrolments share the GPU with speech

    @classmethod
    def create(
        cls, settings: ServeSettings, load: Callable[[ModelSpec], TTS] | None = None
    ) -> ServeContext:
        """Create a context whose models `await context.models.start()` loads.

        `load` replaces `TTS.load`.
        """
        metrics = Metrics()
        models = ModelRegistry(settings, metrics, load)
        traces = Traces.open() if settings.otel else None
        return cls(
            settings=settings,
            models=models,
            metrics=metrics,
            streams=Streams(models, metrics, traces, live=settings.live),
            admission=Admission(models, metrics, settings.max_wait_s),
            encoding_threads=CountedThreads(os.cpu_count() or 1, "encode", metrics),
            clones=CloneCache(metrics),
            enrolment_lock=asyncio.Lock(),
        )
