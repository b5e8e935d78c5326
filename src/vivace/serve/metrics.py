"""Counters, gauges and histograms in Prometheus' text format, written by hand.

Labels come from settings and from our own code, never from a request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from vivace._version import __version__
from vivace.speech import Usage

FIRST_AUDIO_BOUNDS_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
REQUEST_BOUNDS_S = (0.01, 0.05, 0.25, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
WAIT_BOUNDS_S = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TURN_BOUNDS_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0)
BATCH_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

Labels = tuple[tuple[str, str], ...]
Levels = Callable[[], Mapping[str, float]]  # by the value of a label; "" has none

COUNTERS = {
    "http_requests_total": "Requests by route and status.",
    "stream_failures_total": "Streams that failed, by the status and code of their error.",
    "streams_total": "Streams spoken to their end.",
    "audio_seconds_total": "Seconds of audio made.",
    "words_missing_total": "Words that were not spoken, also not after a retry.",
    "utterance_retries_total": "Parts of utterances that were spoken wrongly and then again.",
    "turns_total": "Turns of the engine.",
    "frames_total": "Frames of 80 ms that were asked of the backend.",
    "rebuilds_total": "Models loaded again after a failure.",
    "engine_deaths_total": "Engines that died.",
}
HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "first_audio_seconds": ("From the request to its first audio.", FIRST_AUDIO_BOUNDS_S),
    "request_seconds": ("From a request to the end of its answer.", REQUEST_BOUNDS_S),
    "slot_wait_seconds": ("How long utterances waited for a slot.", WAIT_BOUNDS_S),
    "turn_seconds": ("How long the turns of the engine took.", TURN_BOUNDS_S),
    "turn_streams": ("Streams that a turn made frames for.", BATCH_BOUNDS),
}
NOT_BY_MODEL = ("http_requests_total", "stream_failures_total", "request_seconds")


class Turn(Protocol):
    """What the engine says of a turn."""

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


class Histogram:
    """How many observations were at most each bound."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[sum(value > bound for bound in self.bounds)] += 1
        self.total += value


@dataclass(frozen=True, slots=True)
class Gauge:
    """Values of the moment, read when they are asked for."""

    name: str
    help_text: str
    label: str
    levels: Levels
    kind: str = "gauge"


class Metrics:
    """What was served since the start, and the gauges of those who have some to show."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[Labels]] = {name: Counter() for name in COUNTERS}
        self._histograms: dict[str, dict[Labels, Histogram]] = {name: {} for name in HISTOGRAMS}
        self._gauges: dict[str, Gauge] = {}
        self._pools: dict[str, list[Callable[[], tuple[int, int]]]] = {}
        self.watch("info", "The version that runs.", lambda: {__version__: 1.0}, "version")
        self.watch("pool_tasks", "Tasks of a pool, running or waiting.", self._tasks, "pool")
        self.watch("pool_workers", "Tasks that a pool runs at once.", self._workers, "pool")

    # -- series that start at 0 ----------------------------------------------------------------

    def expose_models(self, names: Iterable[str]) -> None:
        """Show every counter and histogram that has the label `model`, for each of `names`."""
        for model in names:
            for name in COUNTERS.keys() - NOT_BY_MODEL:
                self._count(name, 0, model=model)
            for name in HISTOGRAMS.keys() - NOT_BY_MODEL:
                self._histogram(name, model=model)

    def expose_route(self, route: str, status: int) -> None:
        """Show the requests of a route; `status` is what it answers on success."""
        self._count("http_requests_total", 0, route=route, status=str(status))
        self._histogram("request_seconds", route=route)

    def expose_failure(self, status: int, code: str) -> None:
        self._count("stream_failures_total", 0, status=str(status), code=code)

    # -- counting ------------------------------------------------------------------------------

    def count_request(self, route: str, status: int, seconds: float) -> None:
        self._count("http_requests_total", route=route, status=str(status))
        self._observe("request_seconds", seconds, route=route)

    def count_failure(self, status: int, code: str | None) -> None:
        self._count("stream_failures_total", status=str(status), code=code or "")

    def count_stream(self, model: str) -> None:
        self._count("streams_total", model=model)

    def count_audio(self, model: str, seconds: float) -> None:
        self._count("audio_seconds_total", seconds, model=model)

    def count_completeness(self, model: str, usage: Usage) -> None:
        self._count("words_missing_total", len(usage.missing_words), model=model)
        self._count("utterance_retries_total", usage.retries, model=model)

    def count_rebuild(self, model: str) -> None:
        self._count("rebuilds_total", model=model)

    def count_death(self, model: str) -> None:
        self._count("engine_deaths_total", model=model)

    def count_turn(self, model: str, turn: Turn) -> None:
        """Called by the engine's thread."""
        self._count("turns_total", model=model)
        self._count("frames_total", turn.num_stepped * turn.num_frames, model=model)
        self._observe("turn_seconds", turn.seconds, model=model)
        if turn.num_stepped:
            self._observe("turn_streams", turn.num_stepped, model=model)
        for seconds in turn.waits_s:
            self._observe("slot_wait_seconds", seconds, model=model)

    def observe_first_audio(self, model: str, seconds: float) -> None:
        self._observe("first_audio_seconds", seconds, model=model)

    def watch(
        self, name: str, help_text: str, levels: Levels, label: str = "", kind: str = "gauge"
    ) -> None:
        """Show a gauge whose values are read by `levels`; a second one of the name replaces it."""
        self._gauges[name] = Gauge(name, help_text, label, levels, kind)

    def watch_pool(self, name: str, read: Callable[[], tuple[int, int]]) -> None:
        """A pool's tasks and workers; several of one name are added up."""
        self._pools.setdefault(name, []).append(read)

    def _count(self, name: str, amount: float = 1, **labels: str) -> None:
        self._counts[name][tuple(labels.items())] += amount  # type: ignore[assignment]

    def _observe(self, name: str, value: float, **labels: str) -> None:
        self._histogram(name, **labels).observe(value)

    def _histogram(self, name: str, **labels: str) -> Histogram:
        key, bounds = tuple(labels.items()), HISTOGRAMS[name][1]
        return self._histograms[name].setdefault(key, Histogram(bounds))

    def _tasks(self) -> dict[str, float]:
        return {name: sum(read()[0] for read in pools) for name, pools in self._pools.items()}

    def _workers(self) -> dict[str, float]:
        return {name: sum(read()[1] for read in pools) for name, pools in self._pools.items()}

    # -- showing -------------------------------------------------------------------------------

    def render(self) -> str:
        lines: list[str] = []
        for name, counted in self._counts.items():
            rows = ((_labels(key), n) for key, n in sorted(counted.copy().items()))
            lines += _family(f"vivace_{name}", "counter", COUNTERS[name], rows)
        for gauge in self._gauges.values():
            name = gauge.name if gauge.name.startswith("process_") else f"vivace_{gauge.name}"
            levels = (
                (_labels(((gauge.label, key),)) if key else "", value)
                for key, value in gauge.levels().items()
            )
            lines += _family(name, gauge.kind, gauge.help_text, levels)
        for name, by_labels in self._histograms.items():
            lines += _family(f"vivace_{name}", "histogram", HISTOGRAMS[name][0], ())
            for key, histogram in sorted(by_labels.copy().items()):
                lines += _buckets(f"vivace_{name}", key, histogram)
        return "\n".join(lines) + "\n"


def _buckets(name: str, key: Labels, histogram: Histogram) -> list[str]:
    lines, running = [], 0
    bounds = [*map(str, histogram.bounds), "+Inf"]
    for bound, count in zip(bounds, list(histogram.counts), strict=True):
        running += count
        lines.append(f"{name}_bucket{_labels((*key, ('le', bound)))} {running}")
    lines.append(f"{name}_sum{_labels(key)} {histogram.total:.6f}")
    return [*lines, f"{name}_count{_labels(key)} {running}"]


def _family(name: str, kind: str, help_text: str, rows: Iterable[tuple[str, float]]) -> list[str]:
    lines = [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
    return lines + [f"{name}{labels} {_number(value)}" for labels, value in rows]


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.6f}"


def _labels(pairs: Labels) -> str:
    joined = ",".join(f'{name}="{_quote(value)}"' for name, value in pairs)
    return f"{{{joined}}}"


def _quote(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
