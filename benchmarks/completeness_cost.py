"""Cost of the check for missing words: the same batches with and without a watched head.

    python benchmarks/completeness_cost.py 0.6B-CustomVoice --backend cuda_graph --streams 1,8,64 \
        --json benchmarks/results/completeness-cost-0.6B-h200.json

A released model's name selects random weights of its shape. Their attention follows no text, so
faults are counted and not repaired. `embedded` is the embedded voice. Runs with and without the
check alternate; the figures are medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from engine import random_tts
from report import read_sizes, write_report

from vivace.cli.bench.machine import machine
from vivace.engine.utterances import follower, retry
from vivace.model.config import Head
from vivace.tts import TTS

TEXT = "The river babbled inanely to itself, and nobody came to see it any more."
NUM_FRAMES = 120


def main() -> None:
    arguments = parse()
    with load(arguments) as tts:
        tts.warmup()
        rows = measure(tts, arguments)
    report = {
        "benchmark": "completeness_cost",
        "model": arguments.shape,
        "backend": arguments.backend,
        "machine": machine(),
        "rows": rows,
    }
    print(json.dumps(rows, indent=1))
    write_report(arguments.json, report)


def load(arguments: argparse.Namespace) -> TTS:
    if arguments.shape == "embedded":
        return TTS.load(
            device=arguments.device,
            backend=arguments.backend,
            max_streams=max(arguments.streams),
        )
    retry.MAX_RETRIES = 0
    follower.TAIL_FRAMES = 10**9
    return random_tts(
        arguments.shape,
        device=arguments.device,
        backend=arguments.backend,
        max_streams=max(arguments.streams),
        codec_precision=arguments.codec,
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape")
    parser.add_argument("--backend", default="cuda_graph")
    parser.add_argument("--streams", type=read_sizes, default="1,8,64")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--layer", type=int, default=20)
    parser.add_argument("--codec", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def measure(tts: TTS, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    engine = tts.engine
    head = engine.backend.watched or Head(arguments.layer, 3)
    limit: dict[str, Any] = {} if arguments.shape == "embedded" else {"max_frames": NUM_FRAMES}
    rows = []
    for size in arguments.streams:
        seconds: dict[bool, list[float]] = {True: [], False: []}
        for number in range(2 * arguments.rounds + 2):
            is_watched = number % 2 == 1
            engine.call(partial(switch, engine.backend, head if is_watched else None))
            taken, audio_s = speak(tts, size, limit)
            if number >= 2:
                seconds[is_watched].append(taken)
        plain, watched = (statistics.median(seconds[on]) for on in (False, True))
        rows.append(
            {
                "streams": size,
                "audio_s_per_s": round(audio_s / plain, 1),
                "audio_s_per_s_checked": round(audio_s / watched, 1),
                "slower_percent": round(100 * (watched / plain - 1), 2),
            }
        )
    return rows


@torch.inference_mode()
def switch(backend: Any, head: Head | None) -> None:
    """Watch a head, or none. Backends have no method to stop watching."""
    table = getattr(backend, "_table", None)
    if table is None:
        backend.watched = head
    elif head is None:
        table.head = None
        table.watch.fill_(-1)
        torch.cuda.synchronize()
    else:
        backend.watch(head)


def speak(tts: TTS, size: int, limit: dict[str, Any]) -> tuple[float, float]:
    """Wall time of a batch, and the duration of its audio, in seconds."""
    began = time.perf_counter()
    audios = tts.speak([TEXT] * size, language="english", seed=1, trim=False, **limit)
    return time.perf_counter() - began, sum(audio.duration_s for audio in audios)


if __name__ == "__main__":
    main()
