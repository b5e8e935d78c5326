"""`vivace bench`: measures latency and throughput of a model on this machine."""

from __future__ import annotations

import argparse
import json
import os
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from vivace.cli.bench.backends import BATCHES, measure_backends
from vivace.cli.bench.latency import TEXT, Subject, measure_latency
from vivace.cli.bench.load import measure_arrivals, measure_live, measure_throughput
from vivace.cli.bench.machine import machine
from vivace.cli.bench.peers import measure_peers
from vivace.cli.bench.report import format_report, plot_arrivals
from vivace.cli.progress import ProgressLine
from vivace.cli.request import load_model
from vivace.cli.streams import STDOUT_PATHS, print_json, print_stdout
from vivace.errors import RequestError
from vivace.serve.garbage_collection import collect_less_often
from vivace.tts import TTS

SERVER_STREAMS = 32
DEFAULT_INSTRUCT = "A calm and friendly narrator."


def bench(arguments: argparse.Namespace) -> int:
    """Measure and report. The exit code is 1 if a request failed."""
    check(arguments)
    began = time.perf_counter()
    with load_model(arguments, max_streams=num_slots(arguments)) as tts:
        load_s = time.perf_counter() - began
        if arguments.batches is None and tts.device.type == "cuda":
            arguments.batches = BATCHES
        report = measure(Subject(tts, _options(tts, arguments)), load_s, arguments)
    deliver(report, arguments)
    return int(any(row["failed"] for row in report["arrivals"]))


def check(arguments: argparse.Namespace) -> None:
    """Raise RequestError for invalid options before the measurement starts."""
    if arguments.json and os.path.isdir(arguments.json):
        raise RequestError(f"cannot write {arguments.json}: it is a folder")
    if not arguments.plot:
        return
    if not arguments.rates:
        raise RequestError("--plot needs --rates, for example --rates 1,2,4")
    if Path(arguments.plot).suffix != ".png":
        raise RequestError(f"--plot must be a .png file, not {arguments.plot}")
    if find_spec("matplotlib") is None:
        raise RequestError("--plot needs matplotlib; run: pip install matplotlib")


def num_slots(arguments: argparse.Namespace) -> int:
    """The highest number of concurrent streams; with --rates, at least that of a server."""
    most: int = max((*arguments.streams, *arguments.live))
    return max(most, SERVER_STREAMS) if arguments.rates else most


def deliver(report: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Print the report. Write the JSON file and the plot if requested."""
    is_piped = arguments.json in STDOUT_PATHS
    if is_piped:
        print_json(report, indent=1)
    else:
        print_stdout(format_report(report))
    try:
        if arguments.json and not is_piped:
            path = Path(arguments.json)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        if arguments.plot:
            plot_arrivals({report["model"]: report["arrivals"]}, Path(arguments.plot))
    except OSError as error:
        raise RequestError(f"cannot write {error.filename}: {error.strerror or error}") from error


def measure(subject: Subject, load_s: float, arguments: argparse.Namespace) -> dict[str, Any]:
    """All requested measurements of a model that has not generated audio yet."""
    num_frames = arguments.frames
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    report: dict[str, Any] = {
        "benchmark": "bench",
        "model": repr(subject.tts).strip("<>"),
        "machine": machine(),
        "cold_start": _measure_cold_start(subject, load_s, num_frames=num_frames),
    }
    with ProgressLine() as line:
        line.show("one stream")
        report["latency"] = measure_latency(
            subject, num_frames=num_frames, repeats=arguments.repeats
        )
        report["throughput"] = [
            measure_throughput(subject, count, num_frames=num_frames, rounds=arguments.rounds)
            for count in line.each(arguments.streams, "{} concurrent streams")
        ]
        report["live"] = [
            measure_live(subject, count, seconds=arguments.seconds)
            for count in line.each(arguments.live, "{} live streams")
        ]
        report["arrivals"] = [
            measure_arrivals(subject, rate, seconds=arguments.seconds, num_frames=num_frames)
            for rate in line.each(arguments.rates, "{:g} requests per second")
        ]
        report["memory"] = _memory(subject.tts)
        if arguments.batches:
            line.show("all available backends")
            report["backends"] = measure_backends(subject, arguments.batches, num_frames=num_frames)
    if arguments.compare:
        ours = report["latency"]["times_real_time"]
        report["peers"] = measure_peers(subject, ours, num_frames=num_frames)
    return report


def _measure_cold_start(subject: Subject, load_s: float, *, num_frames: int) -> dict[str, float]:
    """Seconds of the first call and of the warmup, after which the model is warm."""
    began = time.perf_counter()
    subject.tts.speak(TEXT, seed=0, **subject.length(num_frames))
    spoke = time.perf_counter()
    subject.tts.warmup()
    collect_less_often()  # as the server does
    cold = {
        "load_s": load_s,
        "first_call_s": spoke - began,
        "warmup_s": time.perf_counter() - spoke,
    }
    return {name: round(value, 3) for name, value in cold.items()}


def _memory(tts: TTS) -> dict[str, int]:
    """Bytes on the device, by purpose."""
    sizes = tts.engine.backend.memory()
    if tts.device.type == "cuda":
        sizes["peak of everything"] = torch.cuda.max_memory_allocated(tts.device)
    return sizes


def _options(tts: TTS, arguments: argparse.Namespace) -> dict[str, Any]:
    options: dict[str, Any] = {"language": arguments.language}
    if tts.model_type == "voice_design":
        options["instruct"] = arguments.instruct or DEFAULT_INSTRUCT
    elif arguments.voice is not None:
        options["voice"] = tts.voice(arguments.voice)
    elif tts.model_type == "base":
        raise RequestError("a Base model needs a voice: add --voice me.wav")
    return options
