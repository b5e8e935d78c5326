"""Seconds of audio a second of concurrent streams, by settings of the engine and the GPU backends.

    python benchmarks/stream_sweep.py 0.6B-CustomVoice --streams 64 --share 0.25 0.75 1 --turn 8 \
        --json build/gpu/stream-sweep-0.6B.json

Each given value replaces one default. `--combine` measures all combinations instead. The settings
are constants of the package:

- `--share`: multiprocessors that long kernels of the codec may use with up to 64 streams
- `--waves`: tiles for each block from which a kernel of the codec is long
- `--pass`: maximum frames of all slots in one pass of the codec
- `--turn`: fewest frames of a turn in which no reader waits for its first audio
- `--ahead`: frames that are queued while the host waits for earlier frames
- `--beside`: 1: the codec runs beside frames, on a CUDA stream of its own; 0: between them
- `--rows`: most rows of prompts in one pass

The defaults are measured first and last. Every row has a new backend, and a round that is not
measured captures its graphs.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from engine import random_tts
from report import write_report

from vivace.backends import Capacity, build_backend
from vivace.backends.cuda_graph import buckets, step
from vivace.backends.cuda_graph.backend import CudaGraphBackend
from vivace.backends.cuda_graph.codec import fused as codec_fused
from vivace.backends.cuda_graph.codec import operands as codec_operands
from vivace.cli.bench.latency import Subject
from vivace.cli.bench.load import measure_throughput
from vivace.cli.bench.machine import machine
from vivace.engine.checkpoints.loaded import LoadedCheckpoint, Runtime
from vivace.engine.engine import Engine
from vivace.engine.limits import PACES, EngineLimits, Pace, Profile
from vivace.serve.garbage_collection import collect_less_often
from vivace.tts import TTS

GRAPHS = "vivace.backends.cuda_graph"
CONSTANTS = {  # by setting
    "share": (f"{GRAPHS}.codec.fused.SHARE",),
    "waves": (f"{GRAPHS}.codec.operands.MANY_WAVES",),
    "pass": (f"{GRAPHS}.buckets.CODEC_PASS", f"{GRAPHS}.codec.graphs.CODEC_PASS"),
    "turn": ("vivace.engine.turns.scheduler.PACES",),
    "ahead": (f"{GRAPHS}.step.LOOKAHEAD",),
    "beside": (f"{GRAPHS}.backend.CudaGraphBackend.renders_beside_frames",),
    "rows": (f"{GRAPHS}.prefill.PROMPT_ROWS", f"{GRAPHS}.backend.PROMPT_ROWS"),
}
PROFILE: Profile = "balanced"
DEFAULTS: dict[str, float] = {
    "share": codec_fused.SHARE,
    "waves": codec_operands.MANY_WAVES,
    "pass": buckets.CODEC_PASS,
    "turn": PACES[PROFILE].min_frames,
    "ahead": step.LOOKAHEAD,
    "beside": CudaGraphBackend.renders_beside_frames,
    "rows": buckets.PROMPT_ROWS[-1],
}
Settings = dict[str, float]


def main() -> None:
    arguments = parse()
    deadline = time.perf_counter() + arguments.seconds
    given = {name: values for name in CONSTANTS if (values := getattr(arguments, name))}
    rows = list(combined(given) if arguments.combine else alone(given))
    made = random_tts(
        arguments.shape,
        device=arguments.device,
        backend=arguments.backend,
        max_streams=arguments.streams,
    )
    report: dict[str, Any] = {
        "benchmark": "stream sweep",
        "model": f"{arguments.shape}, random weights",
        "machine": machine(),
        "streams": arguments.streams,
        "defaults": DEFAULTS,
        "results": [],
    }
    for number, settings in enumerate(rows):
        if time.perf_counter() > deadline:
            print(f"{len(rows) - number} of {len(rows)} rows are left out", flush=True)
            break
        report["results"].append(measure(made, settings, arguments))
        write_report(arguments.json, report)
    made.close()


def alone(given: dict[str, list[float]]) -> Iterator[Settings]:
    """The defaults, every value alone, and the defaults again."""
    yield {}
    for name, values in given.items():
        yield from ({name: value} for value in values)
    yield {}


def combined(given: dict[str, list[float]]) -> Iterator[Settings]:
    for values in itertools.product(*given.values()):
        yield dict(zip(given, values, strict=True))


def measure(made: TTS, settings: Settings, arguments: argparse.Namespace) -> dict[str, Any]:
    """One row: a new backend over the weights of `made`."""
    size = {"num_frames": arguments.frames, "rounds": arguments.rounds}
    with applied(settings), rebuilt(made, arguments) as tts:
        subject = Subject(tts, {"language": "english"})
        measure_throughput(subject, arguments.streams, **size)
        collect_less_often()  # as the server does
        found = [
            measure_throughput(subject, arguments.streams, **size) for _ in range(arguments.repeats)
        ]
    row = {
        "settings": settings,
        "audio_s_per_s": statistics.median(each["audio_s_per_s"] for each in found),
        "all": [each["audio_s_per_s"] for each in found],
        "first_audio_p50_ms": statistics.median(each["first_audio_ms"]["p50"] for each in found),
        "underruns": sum(each["underruns"] for each in found),
    }
    changed = ", ".join(f"{name} {value:g}" for name, value in settings.items()) or "defaults"
    print(
        f"{changed}: {row['audio_s_per_s']:.0f} seconds of audio a second,"
        f" first audio {row['first_audio_p50_ms']:.1f} ms",
        flush=True,
    )
    return row


@contextmanager
def applied(settings: Settings) -> Iterator[None]:
    """The constants have these values inside the context."""
    with ExitStack() as stack:
        for name, value in settings.items():
            for target in CONSTANTS[name]:
                stack.enter_context(patch(target, constant(name, value)))
        yield


def constant(name: str, value: float) -> object:
    """The value of the package's constant for a setting."""
    if name == "share":
        return value
    if name == "turn":
        return paces(int(value))
    if name == "rows":
        return tuple(sorted({*(size for size in buckets.PROMPT_ROWS if size < value), int(value)}))
    return int(value)


def paces(min_frames: int) -> dict[Profile, Pace]:
    return {**PACES, PROFILE: replace(PACES[PROFILE], min_frames=min_frames)}


@contextmanager
def rebuilt(made: TTS, arguments: argparse.Namespace) -> Iterator[TTS]:
    """A new engine and backend over the same weights, freed at the end."""
    gc.unfreeze()
    gc.collect()  # the backend of the last row
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    runtime, num_streams = made.loaded.runtime, arguments.streams
    capacity = Capacity(max_streams=num_streams)
    built = build_backend(arguments.backend, runtime.model, runtime.codec, capacity)
    engine = Engine(built, EngineLimits(max_streams=num_streams))
    tokenizer = made.loaded.writer.tokenizer
    changed = Runtime.of(runtime.model, runtime.codec, engine)
    with TTS(LoadedCheckpoint(made.checkpoint, tokenizer, changed)) as tts:
        yield tts


def parse(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shape", help="a released model's name or a checkpoint folder")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--frames", type=int, default=64, help="of a stream")
    parser.add_argument("--rounds", type=int, default=3, help="consecutive streams of a client")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of a row")
    for name, value in DEFAULTS.items():
        parser.add_argument(
            f"--{name}", type=float, nargs="+", metavar="X", help=f"default {value}"
        )
    parser.add_argument("--combine", action="store_true", help="measure all combinations")
    parser.add_argument("--seconds", type=float, default=280.0, help="start no row after these")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(given)


if __name__ == "__main__":
    main()
