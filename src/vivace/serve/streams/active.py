"""The streams of the server: counted, traced and always closed; a drain waits for them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import (
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import replace
from typing import Any

from starlette.websockets import WebSocketDisconnect

from vivace.audio.clip import AudioChunk
from vivace.errors import BackendError, EngineError, NumericError, QueueFullError, RunawayError
from vivace.live_text import LiveText
from vivace.options import StreamOptions
from vivace.serve.errors import ENGINE_FAILURES, RefusedError, describe
from vivace.serve.models.configured import Models
from vivace.serve.models.crashes import digest_of
from vivace.serve.models.served_model import ServedModel
from vivace.serve.observability.logs import FIELDS
from vivace.serve.observability.metrics import Metrics
from vivace.serve.observability.traces import SpeechTrace, Traces
from vivace.serve.streams.admission import AdmittedRequest
from vivace.speech import LiveMode, Usage

log = logging.getLogger(__name__)

DRAINING_RETRY_S = 5.0


class Streams:
    """Counts active streams, and drains them before the server stops."""

    def __init__(
        self,
        models: Models,
        metrics: Metrics,
        traces: Traces | None = None,
        *,
        live: LiveMode | None = None,  # for requests without the option
    ) -> None:
        self._models, self._metrics, self._live = models, metrics, live
        self.traces = traces
        self._num_active = self._num_held = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self.draining = asyncio.Event()  # set: the server stops when the last stream ends
        active = "Open streams, running or waiting."
        metrics.watch("active_streams", active, lambda: {"": self._num_active}, is_summed=True)
        metrics.start_at_zero(models.names, ENGINE_FAILURES)

    @property
    def num_active(self) -> int:
        return self._num_active

    def check_open(self) -> None:
        """Raise a RefusedError with status 503 while the server drains."""
        if self.draining.is_set():
            raise shutting_down()

    @asynccontextmanager
    async def open(
        self,
        model: ServedModel,
        text: str | LiveText,
        place: AdmittedRequest,
        options: StreamOptions,
    ) -> AsyncIterator[AsyncIterator[AudioChunk]]:
        """The chunks of one speech. Leaving the block closes the stream and frees its slot.

        Errors in the request are raised here or at the first chunk. After a failure of the backend
        the model is probed, and loaded again if the probe fails.
        """
        self.check_open()
        with self.hold():
            self._num_active += 1
            stream: Any = None
            options = replace(options, live=options.live or self._live)
            digest = digest_of(model.name, text, options.changed())
            try:
                async with self._models.recovery.quarantine.running(model.name, digest):
                    with self._models.in_use(model), self._traced(model) as trace:
                        stream = model.tts.synthesizer.stream_async(text, options)
                        place.stream, place.has_whole_text = stream, isinstance(text, str)
                        if trace is not None:
                            stream.on_turn = trace.note
                        yield self._count(stream, model, trace)
                    if stream.finish_reason not in (None, "cancelled"):
                        self._models.recovery.quarantine.clear(digest)
            except (WebSocketDisconnect, ConnectionError):  # the client disconnected
                raise
            except Exception as error:
                failure = describe(error)
                self._metrics.failures.labels(failure.status, failure.code or "").inc()
                if _is_suspect(error):
                    self._models.recovery.suspect(model, digest)
                raise
            finally:
                try:
                    if stream is not None:
                        await stream.aclose()
                finally:
                    self._num_active -= 1

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Make a drain wait for the block."""
        self._num_held += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self._num_held -= 1
            if self._num_held == 0:
                self._is_idle.set()

    def run_held(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that a drain waits for."""
        held = ExitStack()
        held.enter_context(self.hold())
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda _: held.close())
        return task

    def _traced(self, model: ServedModel) -> AbstractContextManager[SpeechTrace | None]:
        return nullcontext() if self.traces is None else self.traces.speech(model.name)

    async def _count(
        self, stream: Any, model: ServedModel, trace: SpeechTrace | None
    ) -> AsyncIterator[AudioChunk]:
        began = time.perf_counter()
        first_s: float | None = None
        async for chunk in stream:
            if first_s is None:
                first_s = time.perf_counter() - began
                self._metrics.first_audio_seconds.labels(model.name).observe(first_s)
            seconds = len(chunk.samples) / chunk.sample_rate
            self._metrics.audio_seconds.labels(model.name).inc(seconds)
            if chunk.usage is not None:
                self._note_usage(model.name, chunk.usage)
            if trace is not None:
                trace.first_audio_s, trace.finish_reason = first_s, chunk.finish_reason
                trace.audio_s += seconds
                trace.usage = chunk.usage
            yield chunk
        self._metrics.streams.labels(model.name).inc()

    def _note_usage(self, model: str, usage: Usage) -> None:
        if usage.audible_ms is not None:
            self._metrics.audible_seconds.labels(model).observe(usage.audible_ms / 1000)
        self._metrics.retries.labels(model).inc(usage.retries)
        if num_missing := len(usage.missing_words):
            self._metrics.missing_words.labels(model).inc(num_missing)
            log.warning(
                "%s: %d of %d words are missing from the speech",
                model,
                num_missing,
                usage.num_words,
                extra={
                    FIELDS: {
                        "model": model,
                        "words_missing": num_missing,
                        "words": usage.num_words,
                        "retries": usage.retries,
                    }
                },
            )

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new streams and wait for the active ones. False after `timeout_s`."""
        self.draining.set()
        try:
            await asyncio.wait_for(self._is_idle.wait(), timeout_s)
        except asyncio.TimeoutError:
            return False
        return True


def shutting_down() -> RefusedError:
    message = "the server is shutting down; try another server, or try again later"
    return RefusedError(message, status=503, code="draining", retry_s=DRAINING_RETRY_S)


def _is_suspect(error: Exception) -> bool:
    """Whether the backend may be broken, so that the model must be probed."""
    if isinstance(error, (QueueFullError, RunawayError, NumericError)):
        return False
    return isinstance(error, (BackendError, EngineError))
