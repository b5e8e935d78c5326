"""Counters and histograms in Prometheus' text format, written by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar

T = TypeVar("T")
FIRST_AUDIO_BOUNDS_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Turn(Protocol):
    """What the engine says of a turn."""

    @property
    def num_stepped(self) -> int: ...

    @property
    def num_frames(self) -> int: ...

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


class Metrics:
    """What was served since the start. Labels come from settings, never from a request."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()  # route, status
        self._failures: Counter[int] = Counter()  # by status, of streams
        self._streams: Counter[str] = Counter()  # by model
        self._audio_s: Counter[str] = Counter()
        self._first_audio: dict[str, Histogram] = {}
        self._rebuilds: Counter[str] = Counter()
        self._turns: Counter[str] = Counter()
        self._frames: Counter[str] = Counter()
        self._turn_s: Counter[str] = Counter()

    def count_request(self, route: str, status: int) -> None:
        self._requests[route, status] += 1

    def count_failure(self, status: int) -> None:
        self._failures[status] += 1

    def count_stream(self, model: str) -> None:
        self._streams[model] += 1

    def count_audio(self, model: str, seconds: float) -> None:
        self._audio_s[model] += seconds  # type: ignore[assignment]

    def count_rebuild(self, model: str) -> None:
        self._rebuilds[model] += 1

    def count_turn(self, model: str, turn: Turn) -> None:
        """Called by the engine's thread."""
        self._turns[model] += 1
        self._frames[model] += turn.num_stepped * turn.num_frames
        self._turn_s[model] += turn.seconds  # type: ignore[assignment]

    def observe_first_audio(self, model: str, seconds: float) -> None:
        self._first_audio.setdefault(model, Histogram(FIRST_AUDIO_BOUNDS_S)).observe(seconds)

    def render(self, gauges: Mapping[str, Mapping[str, float]]) -> str:
        """All of it as text; `gauges` are values of the moment: name -> model -> value."""
        lines: list[str] = []
        lines += _family(
            "vivace_http_requests_total",
            "counter",
            "Requests by route and status.",
            (
                (f'{{route="{route}",status="{code}"}}', n)
                for (route, code), n in _sorted(self._requests)
            ),
        )
        lines += _family(
            "vivace_stream_failures_total",
            "counter",
            "Streams that failed, by the status of their error.",
            ((f'{{status="{code}"}}', n) for code, n in _sorted(self._failures)),
        )
        for name, help_text, counted in (
            ("streams_total", "Streams spoken to their end.", self._streams),
            ("audio_seconds_total", "Seconds of audio made.", self._audio_s),
            ("turns_total", "Turns of the engine.", self._turns),
            ("frames_total", "Frames of 80 ms that were asked of the backend.", self._frames),
            ("turn_seconds_total", "Seconds that the turns took.", self._turn_s),
            ("rebuilds_total", "Models loaded again after a failure.", self._rebuilds),
        ):
            lines += _family(
                f"vivace_{name}",
                "counter",
                help_text,
                ((_model(m), n) for m, n in _sorted(counted)),
            )
        for name, values in gauges.items():
            rows = ((_model(model) if model else "", value) for model, value in values.items())
            lines += _family(f"vivace_{name}", "gauge", name.replace("_", " ").capitalize(), rows)
        lines += self._render_first_audio()
        return "\n".join(lines) + "\n"

    def _render_first_audio(self) -> list[str]:
        name = "vivace_first_audio_seconds"
        lines = [f"# HELP {name} From the request to its first audio.", f"# TYPE {name} histogram"]
        for model, histogram in sorted(self._first_audio.items()):
            label, running = _quote(model), 0
            bounds = [*map(str, histogram.bounds), "+Inf"]
            for bound, count in zip(bounds, histogram.counts, strict=True):
                running += count
                lines.append(f'{name}_bucket{{model="{label}",le="{bound}"}} {running}')
            lines.append(f'{name}_sum{{model="{label}"}} {histogram.total:.6f}')
            lines.append(f'{name}_count{{model="{label}"}} {running}')
        return lines


def _sorted(counter: Counter[T]) -> list[tuple[T, int]]:
    return sorted(counter.items(), key=lambda item: str(item[0]))


def _family(name: str, kind: str, help_text: str, rows: Iterable[tuple[str, float]]) -> list[str]:
    lines = [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
    return lines + [f"{name}{labels} {value:g}" for labels, value in rows]


def _model(name: str) -> str:
    return f'{{model="{_quote(name)}"}}'


def _quote(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
