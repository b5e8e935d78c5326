"""`vivace plan`: prints how many GPUs a number of calls needs, with latency and cost."""

from __future__ import annotations

import argparse
from typing import Any

from vivace.cli.streams import print_json, print_table
from vivace.plan.bench_file import read_bench
from vivace.plan.figures import load_figures
from vivace.plan.planner import CapacityPlan, Demand, plan_capacity
from vivace.plan.replica import percentile
from vivace.plan.traffic import Call, TrafficResult


def plan(arguments: argparse.Namespace) -> None:
    bench = arguments.bench
    figures = read_bench(bench) if bench else load_figures(arguments.gpu, arguments.model)
    demand = Demand(
        num_calls=arguments.calls,
        call=Call(arguments.utterance, arguments.pause),
        first_audio_ms=arguments.first_audio,
        num_losses=arguments.losses,
    )
    made = plan_capacity(figures, demand)
    report = describe(made, arguments.price)
    if arguments.json:
        print_json(report, indent=2)
    else:
        print_table(format_rows(made, report).items(), width=14)


def describe(made: CapacityPlan, price: float | None) -> dict[str, Any]:
    rate = len(made.normal.first_audio_ms) / made.normal.seconds
    report: dict[str, Any] = {
        "gpu": made.figures.gpu,
        "model": made.figures.model,
        "calls": made.demand.num_calls,
        "gpus": made.num_gpus,
        "losses": made.demand.num_losses,
        "max_calls_per_gpu": made.max_calls,
        "calls_per_gpu": made.num_calls,
        "requests_per_s_per_gpu": round(rate, 1),
        "streams_per_gpu": made.normal.peak_streams,
        "audio_s_per_s_per_gpu": round(made.audio_per_s, 1),
        "first_audio_ms": _percentiles(made.normal),
        "first_audio_ms_after_loss": _percentiles(made.after_loss),
        "underruns": made.normal.num_underruns,
        "utterances": len(made.normal.first_audio_ms),
        "figures": dict(made.figures.source),
    }
    if price is not None:
        report["cost_per_hour"] = round(made.num_gpus * price, 2)
        report["cost_per_audio_hour"] = round(made.cost_of_audio_hour(price), 4)
    return report


def _percentiles(result: TrafficResult) -> dict[str, float]:
    return {
        f"p{share}": round(percentile(result.first_audio_ms, share), 1) for share in (50, 95, 99)
    }


def format_rows(made: CapacityPlan, report: dict[str, Any]) -> dict[str, str]:
    call, figures = made.demand.call, made.figures
    speech = f"{call.utterance_s:g} s of speech, {call.pause_s:g} s of pause"
    load = made.audio_per_s / figures.max_audio_per_s
    rows = {
        "calls": f"{report['calls']:,} concurrent, {call.share:.0%} speech: {speech}",
        "GPUs": f"{report['gpus']:,} {figures.gpu.upper()} with {figures.model}, including "
        f"{made.demand.num_losses} spare",
        "calls/GPU": f"{report['calls_per_gpu']:,}, at most {report['max_calls_per_gpu']:,}",
        "streams/GPU": f"up to {report['streams_per_gpu']} concurrent ({figures.num_slots} slots), "
        f"{report['requests_per_s_per_gpu']:g} requests/s",
        "first audio": _format_ms(report["first_audio_ms"]),
        "after a loss": f"{_format_ms(report['first_audio_ms_after_loss'])} in the first 10 s",
        "underruns": f"{report['underruns']} in {report['utterances']:,} utterances",
        "audio/GPU": f"{report['audio_s_per_s_per_gpu']:g} s per second, {load:.0%} of the "
        "highest measured throughput",
    }
    if "cost_per_hour" in report:
        rows["cost"] = (
            f"{report['cost_per_hour']:,.2f} per hour, "
            f"{report['cost_per_audio_hour']:.4f} per hour of audio"
        )
    return rows


def _format_ms(milliseconds: dict[str, float]) -> str:
    return ", ".join(f"{name} {ms:.0f} ms" for name, ms in milliseconds.items())
