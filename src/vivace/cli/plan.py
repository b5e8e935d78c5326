"""`vivace plan`: how many GPUs a number of calls needs, what they hear and what it costs."""

from __future__ import annotations

import argparse
import json
from typing import Any

from vivace.cli.streams import put
from vivace.plan.bench_file import read_bench
from vivace.plan.figures import load_figures
from vivace.plan.planner import CapacityPlan, Demand, plan_capacity
from vivace.plan.replica import percentile
from vivace.plan.traffic import Call, Heard


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
    told = describe(made, arguments.price)
    if arguments.json:
        put(json.dumps(told, indent=2))
    else:
        for line in show(made, told):
            put(line)


def describe(made: CapacityPlan, price: float | None) -> dict[str, Any]:
    rate = len(made.usual.firsts_ms) / made.usual.seconds
    told: dict[str, Any] = {
        "gpu": made.figures.gpu,
        "model": made.figures.model,
        "calls": made.demand.num_calls,
        "gpus": made.num_gpus,
        "losses": made.demand.num_losses,
        "max_calls_per_gpu": made.max_calls,
        "calls_per_gpu": made.num_calls,
        "requests_per_s_per_gpu": round(rate, 1),
        "streams_per_gpu": made.usual.num_most,
        "audio_s_per_s_per_gpu": round(made.audio_per_s, 1),
        "first_audio_ms": _percentiles(made.usual),
        "first_audio_ms_after_loss": _percentiles(made.lost),
        "underruns": made.usual.num_underruns,
        "talks": len(made.usual.firsts_ms),
        "figures": dict(made.figures.source),
    }
    if price is not None:
        told["cost_per_hour"] = round(made.num_gpus * price, 2)
        told["cost_per_audio_hour"] = round(made.cost_of_audio_hour(price), 4)
    return told


def _percentiles(heard: Heard) -> dict[str, float]:
    return {f"p{share}": round(percentile(heard.firsts_ms, share), 1) for share in (50, 95, 99)}


def show(made: CapacityPlan, told: dict[str, Any]) -> list[str]:
    call, figures = made.demand.call, made.figures
    speech = f"{call.utterance_s:g} s spoken, {call.pause_s:g} s of pause"
    full = made.audio_per_s / figures.most_audio
    rows = {
        "calls": f"{told['calls']:,} at once, {call.share:.0%} of each speech: {speech}",
        "GPUs": f"{told['gpus']:,} {figures.gpu.upper()} with {figures.model}; "
        f"{made.demand.num_losses} of them may be lost",
        "calls a GPU": f"{told['calls_per_gpu']:,}, at most {told['max_calls_per_gpu']:,}",
        "streams a GPU": f"up to {told['streams_per_gpu']} at once ({figures.num_slots} slots), "
        f"{told['requests_per_s_per_gpu']:g} requests a second",
        "first audio": _shown(told["first_audio_ms"]),
        "after a loss": f"{_shown(told['first_audio_ms_after_loss'])} in the first 10 s",
        "underruns": f"{told['underruns']} in {told['talks']:,} utterances",
        "audio a GPU": f"{told['audio_s_per_s_per_gpu']:g} s a second, {full:.0%} of the most "
        "that was measured",
    }
    if "cost_per_hour" in told:
        hour = f"{told['cost_per_audio_hour']:.4f} for an hour of audio"
        rows["cost"] = f"{told['cost_per_hour']:,.2f} an hour, {hour}"
    return [f"{name:<14} {text}" for name, text in rows.items()]


def _shown(milliseconds: dict[str, float]) -> str:
    return ", ".join(f"{name} {ms:.0f} ms" for name, ms in milliseconds.items())
