"""OpenTelemetry traces: requests, their speeches, the wait for a slot and the engine's turns.

Enabled by `--otel`; needs the extra `otel`. The standard OTEL_* variables set the exporter, the
sampling and the service name. Spans never contain the text of a request.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from vivace._version import __version__
from vivace.errors import RequestError, install_command
from vivace.serve.observability.metrics import TurnMetrics
from vivace.speech import Usage

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.trace import Span, Tracer

MAX_TURNS = 64  # spans of turns in one speech; further turns are only counted
NANOSECONDS = 1_000_000_000
SERVER_FAULT = 500


class Traces:
    """Creates the spans of one server; `close` sends the remaining spans."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer: Tracer = provider.get_tracer("vivace", __version__)

    @classmethod
    def open(cls, processor: SpanProcessor | None = None) -> Traces:
        """Create a tracer; the default `processor` exports over OTLP and HTTP."""
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider

            processor = processor or _otlp_processor()
        except ImportError as error:
            raise RequestError(
                f"--otel needs OpenTelemetry: {install_command('otel')} ({error})"
            ) from error
        named = Resource.create({"service.version": __version__})
        if str(named.attributes.get("service.name", "")).startswith("unknown_service"):
            named = named.merge(Resource({"service.name": "vivace"}))
        provider = TracerProvider(resource=named)
        provider.add_span_processor(processor)
        return cls(provider)

    def close(self) -> None:
        self._provider.shutdown()

    @contextmanager
    def request(self, method: str, headers: Mapping[str, str]) -> Iterator[RequestTrace]:
        """Start the span of a request, as a child of the client's span if there is one."""
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind

        attributes = {"http.request.method": method}
        with self._tracer.start_as_current_span(
            method,
            context=extract(headers),
            kind=SpanKind.SERVER,
            attributes=attributes,
            record_exception=False,  # the message may quote the text
            set_status_on_exception=False,
        ) as span:
            yield RequestTrace(span, method)

    @contextmanager
    def speech(self, model: str) -> Iterator[SpeechTrace]:
        """Start the span of a speech; its children are written at its end."""
        from opentelemetry.trace import StatusCode

        span = self._tracer.start_span("speech", attributes={"vivace.model": model})
        trace = SpeechTrace(span)
        try:
            yield trace
        except BaseException as error:
            span.set_status(StatusCode.ERROR, type(error).__name__)
            span.set_attribute("error.type", type(error).__name__)
            raise
        finally:
            if span.is_recording():
                trace.write(self._tracer)
            span.end()


class RequestTrace:
    def __init__(self, span: Span, method: str) -> None:
        self._span, self._method = span, method

    def end(self, route: str, status: int, request_id: str) -> None:
        from opentelemetry.trace import StatusCode

        self._span.update_name(f"{self._method} {route}")
        self._span.set_attribute("http.route", route)
        self._span.set_attribute("http.response.status_code", status)
        self._span.set_attribute("vivace.request_id", request_id)
        if status >= SERVER_FAULT:
            self._span.set_status(StatusCode.ERROR)


class SpeechTrace:
    """Collects the figures of one speech. The engine's thread adds the turns."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._began = time.perf_counter()
        self._epoch_ns = time.time_ns() - int(self._began * NANOSECONDS)
        self._turns: list[TurnMetrics] = []
        self._num_turns = 0
        self.first_audio_s: float | None = None
        self.audio_s = 0.0
        self.finish_reason: str | None = None
        self.usage: Usage | None = None  # set at the end of the speech

    def note(self, turn: TurnMetrics) -> None:
        """Called by the engine's thread."""
        self._num_turns += 1
        if len(self._turns) < MAX_TURNS:
            self._turns.append(turn)

    def write(self, tracer: Tracer) -> None:
        from opentelemetry.trace import set_span_in_context

        attributes: dict[str, Any] = {
            "vivace.turns": self._num_turns,
            "vivace.audio_seconds": round(self.audio_s, 3),
            "vivace.first_audio_seconds": self.first_audio_s,
            "vivace.finish_reason": self.finish_reason,
        }
        if (usage := self.usage) is not None and usage.completeness is not None:
            attributes["vivace.completeness"] = usage.completeness
            attributes["vivace.words_missing"] = len(usage.missing_words)
            attributes["vivace.retries"] = usage.retries
        self._span.set_attributes({name: v for name, v in attributes.items() if v is not None})
        parent = set_span_in_context(self._span)
        if self._turns:
            waiting = tracer.start_span("wait for a slot", parent, start_time=self._ns(self._began))
            waiting.end(self._ns(max(self._began, self._turns[0].began)))
        for turn in list(self._turns):
            counts = {"vivace.streams": turn.num_stepped, "vivace.frames": turn.num_frames}
            span = tracer.start_span(
                "turn", parent, attributes=counts, start_time=self._ns(turn.began)
            )
            span.end(self._ns(turn.began + turn.seconds))

    def _ns(self, seconds: float) -> int:
        return self._epoch_ns + int(seconds * NANOSECONDS)


def trace_id() -> str | None:
    """Return the trace id of the current span, or None."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    found = api.get_current_span().get_span_context()
    return f"{found.trace_id:032x}" if found.is_valid else None


def _otlp_processor() -> SpanProcessor:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    return BatchSpanProcessor(OTLPSpanExporter())
