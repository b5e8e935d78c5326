"""The server's Prometheus metrics, in a registry of their own.

Label values come from settings and from the server's code, never from a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from vivace._version import __version__

FIRST_AUDIO_BOUNDS_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
REQUEST_BOUNDS_S = (0.01, 0.05, 0.25, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
WAIT_BOUNDS_S = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TURN_BOUNDS_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0)
BATCH_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
OPENMETRICS_TYPE = "application/openmetrics-text"

ReadValues = Callable[[], Mapping[str, float]]  # by label value; "" for a gauge without labels


class TurnMetrics(Protocol):
    """The engine's report of one turn."""

    @property
    def waits_s(self) -> tuple[float, ...]: ...

    @property
    def num_stepped(self) -> int: ...

    @property
    def num_frames(self) -> int: ...

    @property
    def began(self) -> float: ...

    @property
    def seconds(self) -> float: ...


class SharedMetrics(Protocol):
    """The metrics of all processes of a server."""

    def registry(self, gauges: Collector) -> CollectorRegistry:
        """The sums over all processes, with the gauges of the server as this process sees them."""


class Metrics:
    """Counters and histograms are attributes. All series of `by_model` have the label `model`.

    `shared`: of a server of several processes, whose metrics are added up at each scrape.
    """

    def __init__(self, shared: SharedMetrics | None = None) -> None:
        self._registry, self._shared = CollectorRegistry(), shared
        self._sums: dict[str, Gauge] = {}
        self._to_sum: dict[str, ReadValues] = {}
        self._by_model: list[Counter | Histogram] = []
        self._gauges: dict[str, tuple[str, str, ReadValues]] = {}  # help text, label, values
        self._pools: dict[str, list[Callable[[], tuple[int, int]]]] = {}
        self.requests = self._counter(
            "http_requests_total", "HTTP requests by route and status.", "route", "status"
        )
        self.request_seconds = self._histogram(
            "request_seconds", "Time to the end of the response.", REQUEST_BOUNDS_S, "route"
        )
        self.failures = self._counter(
            "stream_failures_total", "Failed streams by error status and code.", "status", "code"
        )
        self._add_model_metrics()
        self._registry.register(_Gauges(self._gauges))
        if shared is None:
            ProcessCollector(registry=self._registry)
        self.watch("info", "Version of the server.", lambda: {__version__: 1.0}, "version")
        tasks, threads = "Running and waiting tasks of a thread pool.", "Threads of a thread pool."
        self.watch("pool_tasks", tasks, self._tasks, "pool", is_summed=True)
        self.watch("pool_workers", threads, self._workers, "pool", is_summed=True)

    def _add_model_metrics(self) -> None:
        """Create the metrics with the label `model`."""
        self.streams = self._counter("streams_total", "Completed streams.")
        self.audio_seconds = self._counter("audio_seconds_total", "Seconds of generated audio.")
        self.missing_words = self._counter(
            "words_missing_total", "Words that were not spoken, even after a retry."
        )
        self.retries = self._counter(
            "utterance_retries_total", "Parts of utterances that were spoken again."
        )
        self.rebuilds = self._counter("rebuilds_total", "Models loaded again after a failure.")
        self.crashes = self._counter("engine_deaths_total", "Engine crashes.")
        self.first_audio_seconds = self._histogram(
            "first_audio_seconds", "Time from a request to its first audio.", FIRST_AUDIO_BOUNDS_S
        )
        self.audible_seconds = self._histogram(
            "audible_seconds",
            "Time from a request to its first sample above -50 dBFS.",
            FIRST_AUDIO_BOUNDS_S,
        )
        self._turns = self._counter("turns_total", "Engine turns.")
        self._frames = self._counter("frames_total", "Generated frames of 80 ms.")
        self._slot_wait = self._histogram(
            "slot_wait_seconds", "Time that an utterance waited for a slot.", WAIT_BOUNDS_S
        )
        self._turn_seconds = self._histogram(
            "turn_seconds", "Duration of an engine turn.", TURN_BOUNDS_S
        )
        self._turn_streams = self._histogram(
            "turn_streams", "Streams that shared a turn.", BATCH_BOUNDS
        )

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        names = labels or ("model",)
        counter = Counter(f"vivace_{name}", help_text, names, registry=self._registry)
        if not labels:
            self._by_model.append(counter)
        return counter

    def _histogram(
        self, name: str, help_text: str, bounds: tuple[float, ...], *labels: str
    ) -> Histogram:
        names = labels or ("model",)
        histogram = Histogram(
            f"vivace_{name}", help_text, names, registry=self._registry, buckets=bounds
        )
        if not labels:
            self._by_model.append(histogram)
        return histogram

    def start_at_zero(self, models: Iterable[str], failures: Iterable[tuple[int, str]]) -> None:
        """Expose the series of the models, and of failures by status and code."""
        for model in models:
            for metric in self._by_model:
                metric.labels(model)
        for status, code in failures:
            self.failures.labels(status, code)

    def count_turn(self, model: str, turn: TurnMetrics) -> None:
        """Called by the engine's thread."""
        self._turns.labels(model).inc()
        self._frames.labels(model).inc(turn.num_stepped * turn.num_frames)
        self._turn_seconds.labels(model).observe(turn.seconds)
        if turn.num_stepped:
            self._turn_streams.labels(model).observe(turn.num_stepped)
        for seconds in turn.waits_s:
            self._slot_wait.labels(model).observe(seconds)

    # -- gauges --------------------------------------------------------------------------------

    def watch(
        self,
        name: str,
        help_text: str,
        read: ReadValues,
        label: str = "",
        *,
        is_summed: bool = False,  # over all processes of the server
    ) -> None:
        """Add a gauge whose values `read` returns at each scrape, or replace it."""
        full_name = name if name.startswith("process_") else f"vivace_{name}"
        if is_summed and self._shared is not None:
            if full_name not in self._sums:
                self._sums[full_name] = Gauge(
                    full_name,
                    help_text,
                    [label] if label else [],
                    registry=self._registry,
                    multiprocess_mode="livesum",
                )
            self._to_sum[full_name] = read
        else:
            self._gauges[full_name] = help_text, label, read

    def publish(self) -> None:
        """Write the summed gauges for the other processes, which read them at a scrape."""
        for name, gauge in self._sums.items():
            for label_value, value in self._to_sum[name]().items():
                (gauge.labels(label_value) if label_value else gauge).set(value)

    def watch_pool(self, name: str, read: Callable[[], tuple[int, int]]) -> None:
        """Add a pool; `read` returns its tasks and threads. Pools of one name are added up."""
        self._pools.setdefault(name, []).append(read)

    def _tasks(self) -> dict[str, float]:
        return {name: sum(read()[0] for read in pools) for name, pools in self._pools.items()}

    def _workers(self) -> dict[str, float]:
        return {name: sum(read()[1] for read in pools) for name, pools in self._pools.items()}

    # -- exposition ----------------------------------------------------------------------------

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the metrics and their content type: OpenMetrics if `accept` names it, or text."""
        registry = self._registry
        if self._shared is not None:
            self.publish()
            registry = self._shared.registry(_Gauges(self._gauges))
        collector = _WithoutCreationTimes(registry)
        if OPENMETRICS_TYPE in accept:
            return openmetrics.generate_latest(collector), openmetrics.CONTENT_TYPE_LATEST
        return generate_latest(collector), CONTENT_TYPE_PLAIN_0_0_4


class _Gauges(Collector):
    def __init__(self, gauges: Mapping[str, tuple[str, str, ReadValues]]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        for name, (help_text, label, read) in list(self._gauges.items()):
            family = GaugeMetricFamily(name, help_text, labels=[label] if label else [])
            for label_value, value in read().items():
                family.add_metric([label_value] if label else [], value)
            yield family


class _WithoutCreationTimes(Collector):
    """Leaves out the `_created` series that the library adds to every counter and histogram."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [one for one in family.samples if not one.name.endswith("_created")]
            yield family
