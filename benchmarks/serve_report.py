"""Figures of `serve.py` and `served.py`: rows of results, printed and written as JSON."""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from report import write_report
from serve_clients import Run


def compare(
    num_streams: int, direct: list[Run], served: list[Run], wyoming: list[Run]
) -> dict[str, Any]:
    engine, http = summarise(direct), summarise(served)
    kept = http["audio_s_per_s"] / engine["audio_s_per_s"]
    found = {"streams": num_streams, "engine": engine, "http": http, "kept": round(kept, 3)}
    found["added_first_ms"] = round(http["first_ms_p50"] - engine["first_ms_p50"], 2)
    return {**found, "wyoming": summarise(wyoming)} if wyoming else found


def summarise(runs: list[Run]) -> dict[str, float]:
    first = sorted(ms for run in runs for ms in run.first_ms)
    return {
        "first_ms_p50": round(statistics.median(first), 2),
        "first_ms_p99": round(first[min(len(first) - 1, round(0.99 * len(first)))], 2),
        "audio_s_per_s": round(statistics.median(run.audio_s / run.wall_s for run in runs), 2),
    }


def print_row(result: dict[str, Any]) -> None:
    engine, http, wyoming = result["engine"], result["http"], ""
    if "wyoming" in result:
        figures = result["wyoming"]
        wyoming = (
            f", over Wyoming {figures['first_ms_p50']:.1f} (p99 {figures['first_ms_p99']:.1f})"
        )
    print(
        f"{result['streams']:4d} streams: first audio {engine['first_ms_p50']:.1f} ms "
        f"(p99 {engine['first_ms_p99']:.1f}), over HTTP {http['first_ms_p50']:.1f} "
        f"(p99 {http['first_ms_p99']:.1f}){wyoming}; "
        f"{engine['audio_s_per_s']:.1f} s of audio a second, "
        f"over HTTP {http['audio_s_per_s']:.1f} ({result['kept']:.0%})",
        flush=True,
    )
    if "steady" in result:
        print("steady:", end="")
        print_row(result["steady"])


def deliver(arguments: argparse.Namespace, figures: dict[str, Any]) -> None:
    if arguments.json:
        from vivace.cli.bench.machine import machine

        report = {"benchmark": "serve", "machine": machine(), "model": arguments.model}
        report |= {"frames": arguments.frames, **figures}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        write_report(arguments.json, report)
