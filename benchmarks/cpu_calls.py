"""Whole calls on this CPU as a user sees them: memory, load time, first audio and speed.

    python benchmarks/cpu_calls.py 0.6B-CustomVoice --out build/cpu_calls --threads 2 8 \
        --json benchmarks/results/cpu-calls-0.6B-arm.json

A released shape is written to OUT with random weights, so times and memory are real and the audio
is not. `quantize_checkpoint` and every kind of weights run in a process of their own, which
imports PyTorch only if vivace does. `speak` runs model and codec together; with a batch, the time
is that of all texts. CPU time (`cpu_seconds`, `first_audio_cpu_ms`) is that of all threads; with
one thread it hardly depends on other work on the machine. Memory is that of the whole process:
`anonymous` is its own, `file` is mapped and shared with other processes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report import write_report

from vivace import TTS
from vivace.checkpoint import Checkpoint
from vivace.model.config import IntWeights

FRAME_S = 0.08
TEXT = "The meeting was moved to Thursday, because the room was not free on any other day."
MEMORY = {"resident": "VmRSS", "peak": "VmHWM", "anonymous": "RssAnon", "file": "RssFile"}


def main() -> None:
    arguments = parse_arguments()
    if arguments.child:
        print(json.dumps(run_child(arguments)))
        return
    source = find_source(arguments)
    rows = []
    for weights in arguments.weights:
        folder = source
        quantized: dict[str, Any] = {}
        if weights != "full":
            folder = arguments.out / f"{source.name}-{weights}"
            if not folder.exists():
                quantized = {"quantize": start_child(arguments, "quantize", source, weights, 0)}
        for threads in arguments.threads:
            row = {"weights": weights, "threads": threads, **quantized}
            row |= start_child(arguments, "speak", folder, "full", threads)
            rows.append(row)
            print(json.dumps(row), flush=True)
            write(arguments, source.name, rows)


def write(arguments: argparse.Namespace, shape: str, rows: list[dict[str, Any]]) -> None:
    from vivace.cli.bench.machine import machine

    report = {
        "benchmark": "cpu_calls",
        "shape": shape,
        "frames": arguments.frames,
        "machine": machine() | {"threads": max(arguments.threads)},
        "note": arguments.note,
        "results": rows,
    }
    write_report(arguments.json, report)


def find_source(arguments: argparse.Namespace) -> Path:
    """The folder of the shape, written with random weights if it does not exist."""
    import torch
    from released import RELEASED_MODELS
    from shapes import write_checkpoint

    if arguments.shape not in RELEASED_MODELS:
        return Path(arguments.shape)
    folder: Path = arguments.out / arguments.shape
    if not folder.exists():
        write_checkpoint(arguments.shape, folder, torch.device("cpu"))
    return folder


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shape", help="a released name such as 0.6B-CustomVoice, or a folder")
    parser.add_argument("--out", type=Path, required=True, help="folder for written checkpoints")
    choices = ["full", "int8", "int4"]
    parser.add_argument("--weights", nargs="+", default=["int8", "int4"], choices=choices)
    parser.add_argument("--threads", type=int, nargs="+", default=[2])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--frames", type=int, default=50, help="frames of every speech")
    parser.add_argument("--repeats", type=int, default=3, help="the median is reported")
    parser.add_argument("--note", default="", help="kept in the JSON, such as how quiet it was")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--child", choices=["quantize", "speak"], help=argparse.SUPPRESS)
    return parser.parse_args()


def start_child(
    arguments: argparse.Namespace, task: str, folder: Path, weights: str, threads: int
) -> dict[str, Any]:
    names = ("frames", "repeats", "out", "json")
    options = [text for name in names for text in (f"--{name}", str(getattr(arguments, name)))]
    batches = map(str, arguments.batches)
    command = [sys.executable, __file__, str(folder), "--child", task, "--weights", weights]
    command += ["--threads", str(threads)]
    done = subprocess.run(
        [*command, *options, "--batches", *batches], check=True, stdout=subprocess.PIPE, text=True
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def run_child(arguments: argparse.Namespace) -> dict[str, Any]:
    folder = Path(arguments.shape)
    [weights] = arguments.weights
    if arguments.child == "quantize":
        return measure_quantizing(folder, arguments.out / f"{folder.name}-{weights}", weights)
    return measure_speech(folder, arguments)


def measure_quantizing(folder: Path, out: Path, weights: IntWeights) -> dict[str, Any]:
    from vivace.quantize import quantize_checkpoint

    began = time.perf_counter()
    quantize_checkpoint(Checkpoint.open(folder), out, weights)
    return {"seconds": round(time.perf_counter() - began, 1), "peak_gb": memory_gb()["peak"]}


def measure_speech(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    imported = memory_gb()
    [threads] = arguments.threads
    began = time.perf_counter()
    with TTS.load(folder, device="cpu", threads=threads) as tts:
        load_s = time.perf_counter() - began
        loaded = memory_gb()
        speak(tts, 1, arguments.frames)
        spoken = memory_gb()
        calls = [measure_batch(tts, size, arguments) for size in arguments.batches]
        return {
            "backend": tts.engine.backend.name,
            "facts": tts.engine.backend.facts(),
            "imports_torch": "torch" in sys.modules,
            "load_s": round(load_s, 2),
            "memory_gb": {
                "imports": imported,
                "loaded": loaded,
                "one_call": spoken,
                "all_batches": memory_gb(),
            },
            **measure_first_audio(tts, arguments),
            "stream_times_real_time": round(
                arguments.frames * FRAME_S / medians(stream_s, tts, arguments)[0], 3
            ),
            "calls": calls,
        }


def measure_batch(tts: TTS, size: int, arguments: argparse.Namespace) -> dict[str, Any]:
    measured = [with_cpu_s(speak, tts, size, arguments.frames) for _ in range(arguments.repeats)]
    times, cpu_times = (sorted(each) for each in zip(*measured, strict=True))
    seconds = times[len(times) // 2]
    audio_s = size * arguments.frames * FRAME_S
    return {
        "batch": size,
        "seconds": [round(each, 3) for each in times],
        "cpu_seconds": [round(each, 3) for each in cpu_times],
        "times_real_time": round(audio_s / seconds, 3),
        "wall_per_audio": round(seconds / audio_s, 3),
    }


def measure_first_audio(tts: TTS, arguments: argparse.Namespace) -> dict[str, float]:
    elapsed, cpu = (round(1000 * each, 1) for each in medians(first_audio_s, tts, arguments))
    return {"first_audio_ms": elapsed, "first_audio_cpu_ms": cpu}


def with_cpu_s(measure: Callable[..., float], *arguments: Any) -> tuple[float, float]:
    """The result of `measure`, and the CPU time of the call."""
    began = time.process_time()
    seconds = measure(*arguments)
    return seconds, time.process_time() - began


def speak(tts: TTS, size: int, num_frames: int) -> float:
    """Seconds of one call that speaks a batch of texts with `num_frames` frames each."""
    texts = [f"{number}. {TEXT}" for number in range(size)]
    began = time.perf_counter()
    found = tts.speak(texts if size > 1 else texts[0], **options(tts, num_frames))
    seconds = time.perf_counter() - began
    clips = found if isinstance(found, list) else [found]
    assert {round(clip.duration_s / FRAME_S) for clip in clips} == {num_frames}
    return seconds


def first_audio_s(tts: TTS, num_frames: int) -> float:
    began = time.perf_counter()
    with tts.stream(TEXT, **options(tts, num_frames, chunk_frames=1)) as stream:
        next(iter(stream))
        return time.perf_counter() - began


def stream_s(tts: TTS, num_frames: int) -> float:
    began = time.perf_counter()
    for _ in tts.stream(TEXT, **options(tts, num_frames)):
        pass
    return time.perf_counter() - began


def medians(
    measure: Callable[..., float], tts: TTS, arguments: argparse.Namespace
) -> tuple[float, float]:
    """Of elapsed time and of CPU time, in seconds."""
    measured = [with_cpu_s(measure, tts, arguments.frames) for _ in range(arguments.repeats)]
    elapsed, cpu = (sorted(each)[len(each) // 2] for each in zip(*measured, strict=True))
    return elapsed, cpu


def options(tts: TTS, num_frames: int, **more: Any) -> dict[str, Any]:
    voice = tts.speakers[0] if tts.speakers else None
    frames = {"min_frames": num_frames, "max_frames": num_frames, "guard": False, "trim": False}
    return {"voice": voice, "seed": 1, **frames, **more}


def memory_gb() -> dict[str, float]:
    """Memory of this process in 10⁹ bytes. `peak` is since its start. Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {
        name: round(int(fields[field].split()[0]) * 1024 / 1e9, 3) for name, field in MEMORY.items()
    }


if __name__ == "__main__":
    main()
