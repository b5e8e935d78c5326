"""How fast a voice speaks on this CPU: load, first audio, times real time, milliseconds by part.

    python benchmarks/cpu.py --threads 1 2 --contended --json benchmarks/results/cpu.json

The model is a checkpoint folder or hub id, by default the embedded voice. Every measurement runs in
a fresh process. `--contended` measures once more while a busy process runs on every core.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from report import write_report

TEXTS = (
    "The needle in the haystack was never found, but nobody minded.",
    "Could you tell me when the next train to the city leaves?",
    "She counted one, two, three, and then the lights went out.",
)
PARTS = {  # methods of `FrameMaker` and functions of its module, timed one by one
    "_prepare": "noise",
    "_read_rows": "talker",
    "draw_first_codes": "first_code",
    "draw_residual_codes": "predictor",
}


def main() -> None:
    arguments = parse_arguments()
    if arguments.measure:
        print(json.dumps(measure(arguments.model, arguments.threads[0], arguments.repeats)))
        return
    results = []
    for is_contended in (False, True) if arguments.contended else (False,):
        for threads in arguments.threads:
            with busy_cores(os.cpu_count() or 1) if is_contended else nothing():
                figures = measure_apart(arguments, threads)
            results.append({"threads": threads or "default", "contended": is_contended, **figures})
            print_row(results[-1])
            write(arguments, results)


def write(arguments: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    from vivace.cli.bench.machine import machine

    report = {
        "benchmark": "cpu",
        "model": arguments.model or "embedded",
        "machine": machine(),
        "note": arguments.note,
        "results": results,
    }
    write_report(arguments.json, report)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--model", help="a checkpoint folder or hub id; default: the embedded voice"
    )
    parser.add_argument(
        "--threads", type=int, nargs="+", default=[0], help="0 is what TTS.load chooses"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--contended", action="store_true", help="measure on busy cores too")
    parser.add_argument("--timeout", type=float, default=180, help="seconds for one row")
    parser.add_argument("--note", default="", help="kept in the JSON, such as how quiet it was")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def measure_apart(arguments: argparse.Namespace, threads: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--measure", "--threads", str(threads)]
    command += ["--repeats", str(arguments.repeats)]
    command += ["--model", arguments.model] if arguments.model else []
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=True, timeout=arguments.timeout
        )
    except subprocess.TimeoutExpired:
        return {"given_up_after_s": arguments.timeout}
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure(model: str | None, threads: int, repeats: int) -> dict[str, Any]:
    began = time.perf_counter()
    from vivace import TTS

    imported = time.perf_counter()
    tts = TTS.load(model, device="cpu", threads=threads or None)
    loaded = time.perf_counter()
    cold = first_audio(tts, 0)
    speeds, firsts, untrimmed, parts = [], [], [], defaultdict(list)
    for seed in range(repeats):
        firsts.append(first_audio(tts, seed))
        untrimmed.append(first_audio(tts, seed, trim_start=False))
        for text in TEXTS:
            audio = tts.speak(text, seed=seed)
            speeds.append(audio.usage.times_real_time)
    streamed = [stream_speed(tts, seed) for seed in range(repeats)]
    for name, ms in time_parts(tts, repeats):
        parts[name].append(ms)
    return {
        "import_s": round(imported - began, 3),
        "load_s": round(loaded - imported, 3),
        "first_audio_cold_ms": round(cold, 1),
        "first_audio_ms": round(statistics.median(firsts), 1),
        "first_audio_untrimmed_ms": round(statistics.median(untrimmed), 1),
        "times_real_time": round(statistics.median(speeds), 2),
        "times_real_time_best": round(max(speeds), 2),
        "times_real_time_streamed": round(statistics.median(streamed), 2),
        "ms_per_frame": {name: round(statistics.median(ms), 2) for name, ms in parts.items()},
    }


def first_audio(tts: Any, seed: int, trim_start: bool = True) -> float:
    with tts.stream(TEXTS[0], seed=seed, trim_start=trim_start) as stream:
        next(stream)
        return float(stream.usage.first_audio_ms)


def stream_speed(tts: Any, seed: int) -> float:
    with tts.stream(TEXTS[0], seed=seed) as stream:
        for _ in stream:
            pass
        return float(stream.usage.times_real_time)


def time_parts(tts: Any, repeats: int) -> Iterator[tuple[str, float]]:
    """Milliseconds a frame of each part; of the whole prompt for `prefill`."""
    from vivace.backends import frame_maker

    backend = tts.engine.backend
    seconds: dict[str, float] = defaultdict(float)
    for name, part in PARTS.items():
        owner = frame_maker if hasattr(frame_maker, name) else frame_maker.FrameMaker
        setattr(owner, name, timed(getattr(owner, name), part, seconds))
    backend.admit = timed(backend.admit, "prefill", seconds)
    if backend.name == "cpu":  # a whole frame in one call
        backend.step = timed(backend.step, "model", seconds)
    backend.render = timed(backend.render, "codec", seconds)
    for seed in range(repeats):
        seconds.clear()
        frames = len(tts.speak(TEXTS[0], seed=seed).codes)
        for part, total in seconds.items():
            yield part, 1000 * total / (1 if part == "prefill" else frames)


def timed(work: Callable[..., Any], part: str, seconds: dict[str, float]) -> Callable[..., Any]:
    def wrapped(*args: Any, **named: Any) -> Any:
        start = time.perf_counter()
        try:
            return work(*args, **named)
        finally:
            seconds[part] += time.perf_counter() - start

    return wrapped


@contextmanager
def busy_cores(num_cores: int) -> Iterator[None]:
    command = [sys.executable, "-c", "while True: pass"]
    workers = [subprocess.Popen(command) for _ in range(num_cores)]
    try:
        yield
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


@contextmanager
def nothing() -> Iterator[None]:
    yield


def print_row(result: dict[str, Any]) -> None:
    state = "contended" if result["contended"] else "as it was"
    if "given_up_after_s" in result:
        print(f"threads {result['threads']}, {state}: not done in {result['given_up_after_s']} s")
        return
    print(
        f"threads {result['threads']}, {state}: load {result['load_s']} s, first audio "
        f"{result['first_audio_ms']} ms ({result['first_audio_cold_ms']} cold), "
        f"{result['times_real_time']} times real time (best {result['times_real_time_best']}, "
        f"streamed {result['times_real_time_streamed']}), {result['ms_per_frame']}",
        flush=True,
    )


if __name__ == "__main__":
    main()
