"""Formats the results as a table, and plots first audio against the request rate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vivace.errors import counted

PARTS = ("model", "codec", "host", "prompts")


Lines = Iterator[tuple[str, str]]  # names and values


def format_report(report: dict[str, Any]) -> str:
    return "\n".join(f"{name:<34} {value}" for name, value in _lines(report))


def _lines(report: dict[str, Any]) -> Lines:
    yield "model", report["model"]
    yield from _cold_start(report["cold_start"])
    if latency := report.get("latency"):
        yield from _latency(latency)
    for name, row_lines in ROWS.items():
        for row in report.get(name, ()):
            yield from row_lines(row)
    for name, size in report.get("memory", {}).items():
        yield f"memory: {name}", f"{size / 2**20:,.0f} MiB"
    for row in report.get("peers", ()):
        yield row["peer"], _peer(row)


def _cold_start(seconds: dict[str, float]) -> Lines:
    yield "load", f"{seconds['load_s']:.2f} s"
    yield "first call, cold", f"{seconds['first_call_s']:.2f} s"
    yield "warmup", f"{seconds['warmup_s']:.2f} s"


def _latency(latency: dict[str, Any]) -> Lines:
    yield "first audio, one stream", f"{latency['first_audio_ms']:.1f} ms"
    yield "first sound, one stream", f"{latency['audible_ms']:.1f} ms"
    yield "times real time, one stream", f"{latency['times_real_time']:.2f}"
    parts = latency["parts"]
    yield "prompt", f"{parts['prompt_ms']:.2f} ms"
    for part in ("model", "codec", "host"):
        yield f"{part}, per frame", f"{parts[f'{part}_ms_per_frame']:.3f} ms"
    for row in latency["chunks"]:
        what = f"chunks of {row['chunk_frames']}"
        speed = f"{row['times_real_time']:.2f} times real time"
        yield what, f"first audio {row['first_audio_ms']:.1f} ms, {speed}"


def _throughput(row: dict[str, Any]) -> Lines:
    yield (
        counted(row["streams"], "stream"),
        f"{row['audio_s_per_s']:.1f} s of audio per second, "
        f"first audio {_percentiles(row['first_audio_ms'])}, "
        f"{counted(row['underruns'], 'underrun')}",
    )


def _live(row: dict[str, Any]) -> Lines:
    yield (
        counted(row["live_streams"], "live stream"),
        f"{counted(row['underruns'], 'underrun')}, {row['underruns_in_first_second']} more in "
        f"the first second, first audio {_percentiles(row['first_audio_ms'])}",
    )


def _percentiles(first_audio_ms: dict[str, float]) -> str:
    return f"p50 {first_audio_ms['p50']:.0f} p95 {first_audio_ms['p95']:.0f} ms"


def _arrivals(row: dict[str, Any]) -> Lines:
    first = ", ".join(f"{name} {value:.0f} ms" for name, value in row["first_audio_ms"].items())
    yield (
        f"{row['requests_per_s']:g} requests per second",
        f"first audio {first or 'none'}, {row['streams_with_underruns']} of {row['requests']} "
        f"with underruns, {row['refused']} rejected, {row['failed']} failed",
    )
    if row["failed"]:
        yield "first failure", row["first_failure"]


def _backend(row: dict[str, Any]) -> Lines:
    streams = f", {counted(row['streams'], 'stream')}" if "streams" in row else ""
    yield f"{row['backend']}{streams}", row.get("refused") or _backend_row(row)


def _peer(row: dict[str, Any]) -> str:
    if "missing" in row:
        return f"not installed ({row['missing']})"
    if "failed" in row:
        return f"failed ({row['failed']})"
    return (
        f"{row['times_real_time']:.2f} times real time; vivace is "
        f"{row['times_faster']:.2f} times as fast"
    )


# Lists of the report, and the lines of each of their rows.
ROWS: dict[str, Callable[[dict[str, Any]], Lines]] = {
    "throughput": _throughput,
    "live": _live,
    "arrivals": _arrivals,
    "backends": _backend,
}


def _backend_row(row: dict[str, Any]) -> str:
    parts = ", ".join(f"{name} {row[f'{name}_ms']:.2f}" for name in PARTS)
    return f"{parts} ms per frame, {row['audio_s_per_s']:.1f} s of audio per second"


def plot_arrivals(arrivals: Mapping[str, list[dict[str, Any]]], path: Path) -> None:
    """Plot first audio against the request rate, with one panel per model."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4) if len(arrivals) == 1 else (10, 4), layout="constrained")
    panels = figure.subplots(1, len(arrivals), sharey=True, squeeze=False)[0]
    for axes, (title, rows) in zip(panels, arrivals.items(), strict=True):
        rates = [row["requests_per_s"] for row in rows]
        for name in ("p50", "p95", "p99"):
            waits = [row["first_audio_ms"].get(name) for row in rows]
            axes.plot(rates, waits, marker="o", label=name)
        axes.set(xlabel="requests per second", title=title, yscale="log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.grid(alpha=0.3, which="both")
        axes.legend()
    panels[0].set_ylabel("first audio, ms")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
