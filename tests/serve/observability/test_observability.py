"""Metrics, the Grafana dashboard, logs and traces of a running server."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.routing import Mount, Route, WebSocketRoute
from websockets.sync.client import connect

from tests.support.http_server import serve_http
from tests.support.project import ROOT
from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from tests.support.websocket_client import wait_until
from vivace.errors import ClosedError, EngineError, QueueFullError, RequestError, RunawayError
from vivace.serve.app import create_app
from vivace.serve.context import ServeContext
from vivace.serve.errors import ENGINE_FAILURES, describe
from vivace.serve.observability.logs import JsonFormatter
from vivace.serve.observability.metrics import Metrics
from vivace.serve.observability.threads import CountedThreads
from vivace.serve.observability.traces import MAX_TURNS, Traces
from vivace.serve.settings import ModelSpec, ServeSettings

LIMIT_S = 60.0
NOT_BY_MODEL = (
    *("vivace_http_requests_total", "vivace_request_seconds", "vivace_stream_failures_total"),
)
SECRET = "The password of the vault is marmalade."
SPEECH = {"model": "tts-1", "input": SECRET, "voice": "alloy", "response_format": "pcm"}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(scope="module")
def backend() -> ScriptedSpeech:
    plans = {5: Plan(fails_at=9), 6: Plan(is_refused=True), 7: Plan(1_200)}
    return ScriptedSpeech(plans=plans, max_streams=1, max_queue=4)


@pytest.fixture(scope="module")
def server(backend: ScriptedSpeech, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = ServeSettings(port=0, voices=tmp_path_factory.mktemp("voices"))
    with running(settings, backend.load) as opened:
        yield opened


def speak(url: str, **fields: object) -> httpx.Response:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"}
    return httpx.post(
        f"{url}/v1/audio/speech", json=SPEECH | fields, headers=headers, timeout=LIMIT_S
    )


def sample_names(text: str) -> set[str]:
    rows = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {re.split(r"[{ ]", row)[0] for row in rows}


def families(text: str) -> set[str]:
    return set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))


# --- metrics ----------------------------------------------------------------------------------


def test_dashboard_uses_only_existing_metrics(server: Running) -> None:
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "vivace.json").read_text("utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [one["query"]["query"] for one in dashboard["templating"]["list"][1:]]
    named = {name for one in asked for name in re.findall(r"\b(?:vivace|process)_\w+", one)}
    assert speak(server.url).status_code == 200
    assert speak(server.url, seed=6).status_code == 500
    wait_for(server, 'vivace_http_requests_total{route="/v1/audio/speech",status="500"}')
    text = httpx.get(f"{server.url}/metrics").text
    unseen = {"vivace_device_memory_bytes"} & families(text)  # present only with a GPU
    assert named - sample_names(text) - unseen == set()
    assert {"vivace_waiting_streams", "vivace_pool_tasks", "vivace_connections"} <= named


def test_every_metric_is_documented(server: Running) -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text("utf-8")
    named = families(httpx.get(f"{server.url}/metrics").text)
    missing = {name for name in named if f"`{name}`" not in page}
    assert len(named) > 20
    assert not missing


def test_every_counter_and_histogram_is_zero_before_the_first_request(tmp_path: Path) -> None:
    models = (ModelSpec("first", None), ModelSpec("second", None))
    settings = ServeSettings(port=0, voices=tmp_path, models=models)
    context = ServeContext.create(settings, ScriptedSpeech().load)
    app = create_app(context)
    text = context.metrics.render()[0].decode()
    for name, kind in re.findall(r"^# TYPE (vivace_\S+) (counter|histogram)$", text, re.MULTILINE):
        sample = name if kind == "counter" else f"{name}_count"
        rows = re.findall(rf"^{sample}({{.*}})? (\S+)$", text, re.MULTILINE)
        assert rows, f"{name} has no sample"
        assert {float(value) for _, value in rows} == {0.0}, name
        if name not in NOT_BY_MODEL:
            assert {labels for labels, _ in rows} == {'{model="first"}', '{model="second"}'}
    for route in app.routes:
        assert isinstance(route, Route | WebSocketRoute | Mount)
        assert f'vivace_request_seconds_count{{route="{route.path}"}} 0' in text
    for name in ("running_streams", "waiting_streams", "turn_age_seconds"):
        assert f'vivace_{name}{{model="second"}} 0' in text


def test_metrics_format_follows_the_accept_header(server: Running) -> None:
    plain = httpx.get(f"{server.url}/metrics")
    assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    asked = {"accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
    modern = httpx.get(f"{server.url}/metrics", headers=asked)
    assert modern.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert modern.text.endswith("# EOF\n")
    assert sample_names(modern.text) == sample_names(plain.text)
    assert not {name for name in sample_names(plain.text) if name.endswith("_created")}


def test_two_applications_have_separate_registries() -> None:
    first, second = Metrics(), Metrics()
    first.streams.labels("vivace").inc()
    assert 'vivace_streams_total{model="vivace"} 1.0' in first.render()[0].decode()
    assert "vivace_streams_total{" not in second.render()[0].decode()


def test_failure_counters_start_at_zero_for_every_engine_error() -> None:
    errors = [
        QueueFullError(4, retry_s=1.0),
        EngineError("broken"),
        RunawayError("endless"),
        ClosedError("closed"),
        KeyError("a bug"),
    ]
    found = {(failure.status, failure.code) for failure in map(describe, errors)}
    assert found == set(ENGINE_FAILURES)


def test_gauges_show_waiting_streams_and_pool_tasks(
    server: Running, backend: ScriptedSpeech
) -> None:
    name = 'vivace_slot_wait_seconds_count{model="vivace"}'
    before = level(server, name)
    backend.is_open.clear()
    asked = [threading.Thread(target=speak, args=(server.url,)) for _ in range(3)]
    for one in asked:
        one.start()
    try:
        wait_for(server, 'vivace_waiting_streams{model="vivace"} 2')
        assert level(server, 'vivace_running_streams{model="vivace"}') == 1
        assert level(server, 'vivace_connections{kind="http"}') >= 4
        assert level(server, 'vivace_pool_workers{pool="work"}') >= 5
    finally:
        backend.is_open.set()
    for one in asked:
        one.join(LIMIT_S)
    assert level(server, name) == before + 3
    name = 'vivace_request_seconds_count{route="/v1/audio/speech"}'
    wait_until(lambda: level(server, name) >= 3)


def test_server_has_one_encoder_pool_and_one_clone_cache(server: Running) -> None:
    assert level(server, 'vivace_pool_workers{pool="encode"}') == (os.cpu_count() or 1)
    assert level(server, 'vivace_pool_workers{pool="clone"}') == 1


def test_open_websocket_is_counted(server: Running) -> None:
    url = f"{server.url.replace('http', 'ws')}/v1/audio/speech/stream"
    with connect(url, proxy=None):
        wait_for(server, 'vivace_connections{kind="websocket"} 1')
    wait_for(server, 'vivace_connections{kind="websocket"} 0')


def level(server: Running, name: str) -> float:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(name)), 0.0)


def wait_for(server: Running, line: str) -> None:
    wait_until(lambda: line in httpx.get(f"{server.url}/metrics").text)


def test_pool_gauge_counts_running_and_waiting_tasks() -> None:
    metrics, may_end = Metrics(), threading.Event()
    with CountedThreads(1, "few", metrics) as pool:
        tasks = [pool.submit(may_end.wait, LIMIT_S) for _ in range(3)]
        assert 'vivace_pool_tasks{pool="few"} 3' in metrics.render()[0].decode()
        assert 'vivace_pool_workers{pool="few"} 1' in metrics.render()[0].decode()
        may_end.set()
        assert all(task.result() for task in tasks)
    assert 'vivace_pool_tasks{pool="few"} 0' in metrics.render()[0].decode()


# --- logs -------------------------------------------------------------------------------------


@contextmanager
def json_lines() -> Iterator[io.StringIO]:
    logger, written = logging.getLogger("vivace"), io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonFormatter())
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield written
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def test_json_log_lines_have_fields_and_no_request_text(server: Running) -> None:
    with json_lines() as written:
        assert speak(server.url).status_code == 200
        assert speak(server.url, seed=6).status_code == 500
        assert speak(server.url, speed="marmalade").status_code == 400
        assert speak(server.url, input="!!!").status_code == 400
        with pytest.raises(httpx.RemoteProtocolError):
            speak(server.url, seed=5)
        wait_until(lambda: written.getvalue().count('"route": "/v1/audio/speech"') == 5)
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    asked = [line for line in lines if line.get("route") == "/v1/audio/speech"]
    assert [line["status"] for line in asked] == [200, 500, 400, 400, 200]
    assert all(line["request_id"] == "mine" and line["seconds"] >= 0 for line in asked)
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    assert "marmalade" not in written.getvalue()
    assert "!!!" not in written.getvalue()


def test_exception_in_json_log_has_type_and_stack_without_message() -> None:
    with json_lines() as written:
        try:
            raise ValueError(SECRET)
        except ValueError:
            logging.getLogger("vivace.test").exception("failed")
    line = json.loads(written.getvalue())
    assert (line["error"], line["message"]) == ("ValueError", "failed")
    assert Path(__file__).name in line["stack"][-1]
    assert "marmalade" not in written.getvalue()


# --- traces -----------------------------------------------------------------------------------


@contextmanager
def traced(server: Running) -> Iterator[InMemorySpanExporter]:
    """Record spans, and wait for the request's span, which ends after the response."""
    exporter = InMemorySpanExporter()
    server.context.streams.traces = traces = Traces.open(SimpleSpanProcessor(exporter))
    try:
        yield exporter
        wait_until(lambda: any(span.name.endswith("/v1/audio/speech") for span in seen(exporter)))
    finally:
        server.context.streams.traces = None
        traces.close()


def seen(exporter: InMemorySpanExporter) -> tuple[ReadableSpan, ...]:
    return tuple(exporter.get_finished_spans())


def by_name(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def attribute(span: ReadableSpan, name: str) -> Any:
    assert span.attributes is not None
    return span.attributes[name]


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


def test_trace_spans_client_request_speech_and_turns(server: Running) -> None:
    with traced(server) as exporter:
        assert speak(server.url).status_code == 200
    (request,) = by_name(exporter, "POST /v1/audio/speech")
    (speech,) = by_name(exporter, "speech")
    (waiting,) = by_name(exporter, "wait for a slot")
    turns = by_name(exporter, "turn")
    assert parent_of(request) == int(PARENT, 16)
    assert {span.context.trace_id for span in exporter.get_finished_spans()} == {int(TRACE, 16)}
    assert parent_of(speech) == request.context.span_id
    assert parent_of(waiting) == speech.context.span_id
    assert {parent_of(turn) for turn in turns} == {speech.context.span_id}
    assert sum(attribute(turn, "vivace.frames") for turn in turns) >= 25
    assert attribute(speech, "vivace.audio_seconds") == 2.0
    assert attribute(speech, "vivace.turns") == len(turns)
    assert attribute(speech, "vivace.finish_reason") == "stop"
    assert attribute(request, "http.response.status_code") == 200
    began = speech.start_time
    assert began is not None
    for span in (waiting, *turns):
        assert span.start_time is not None
        assert span.end_time is not None
        assert began - 1_000_000 <= span.start_time <= span.end_time
    assert "marmalade" not in "".join(span.to_json() for span in exporter.get_finished_spans())


def test_trace_of_a_long_speech_has_a_limited_number_of_turns(server: Running) -> None:
    with traced(server) as exporter:
        assert speak(server.url, seed=7, max_new_tokens=1_200).status_code == 200
    (speech,) = by_name(exporter, "speech")
    assert len(by_name(exporter, "turn")) == MAX_TURNS < attribute(speech, "vivace.turns")


def test_websocket_speech_and_failed_speech_are_traced(server: Running) -> None:
    url = f"{server.url.replace('http', 'ws')}/v1/audio/speech/stream"
    with traced(server) as exporter:
        assert speak(server.url, seed=6).status_code == 500
        (failed,) = by_name(exporter, "speech")
        with connect(url, proxy=None) as opened:
            for message in (
                {"type": "session.config", "response_format": "pcm"},
                {"type": "input.text", "text": SECRET},
                {"type": "input.done"},
            ):
                opened.send(json.dumps(message))
            while b"session.done" not in _bytes(opened.recv(timeout=LIMIT_S)):
                pass
        wait_until(lambda: bool(by_name(exporter, "WS /v1/audio/speech/stream")))
    assert (failed.status.status_code.name, failed.status.description) == ("ERROR", "EngineError")
    assert not failed.events  # an exception's message may quote the text
    spoken = by_name(exporter, "speech")[1]
    (socket,) = by_name(exporter, "WS /v1/audio/speech/stream")
    assert parent_of(spoken) == socket.context.span_id


def _bytes(message: str | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.encode()


def test_traces_are_sent_by_otlp(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    trace_service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    sent: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with serve_http(Collector) as endpoint:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        server.context.streams.traces = traces = Traces.open()
        try:
            assert speak(server.url).status_code == 200
            wait_until(lambda: not server.context.streams.num_active)
            traces.close()
        finally:
            server.context.streams.traces = None
    spans, services = [], set()
    for body in sent:
        request = trace_service.ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            attributes = {one.key: one.value.string_value for one in resource.resource.attributes}
            services.add(attributes["service.name"])
            spans += [span.name for scope in resource.scope_spans for span in scope.spans]
    assert services == {"vivace"}
    assert {"speech", "wait for a slot", "turn"} <= set(spans)


def test_traces_are_created_only_with_the_otel_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ServeContext.create(ServeSettings()).streams.traces is None
    traces = ServeContext.create(ServeSettings(otel=True)).streams.traces
    assert traces is not None
    traces.close()
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(RequestError, match=r"\.\[otel\]"):
        ServeContext.create(ServeSettings(otel=True))
