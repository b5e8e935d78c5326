"""Largest difference between a stream's samples in a batch and alone, by codec precision.

    python benchmarks/batch_difference.py --json build/difference.json --recordings build

The embedded voice on a GPU: lines 41 to 100 of hard.txt alone, then the first sixteen of them as
concurrent streams in chunks of 1 to 5 frames. The recordings are input of quality.py `collect`.
"""

from __future__ import annotations

import argparse
import json
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from report import write_report

from vivace import TTS
from vivace.audio.clip import Audio
from vivace.backends.base import CodecPrecision
from vivace.cli.bench.machine import machine

FIRST, LAST, NUM_STREAMS = 40, 100, 16
PRECISIONS: tuple[CodecPrecision, ...] = ("split", "half")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument(
        "--recordings", type=Path, help="folder for codec_split.npz and codec_half.npz"
    )
    arguments = parser.parse_args()
    texts = Path(__file__).with_name("texts") / "hard.txt"
    lines = texts.read_text(encoding="utf-8").splitlines()[FIRST:LAST]
    results: dict[str, Any] = {}
    spoken: dict[str, list[Audio]] = {}
    for precision in PRECISIONS:
        with TTS.load("mini", device="cuda", backend="cuda_graph", max_streams=NUM_STREAMS,
                      codec_precision=precision) as tts:  # fmt: skip
            spoken[precision] = [tts.speak(line, seed=n) for n, line in enumerate(lines)]
            results[precision] = {
                "largest_difference": largest_difference(tts, lines[:NUM_STREAMS])
            }
        if arguments.recordings:
            write_recordings(arguments.recordings / f"codec_{precision}.npz", spoken[precision])
    distances = sorted(map(decibels, *(spoken[precision] for precision in PRECISIONS)))
    results["decibels"] = {"median": distances[len(distances) // 2], "least": distances[0]}
    report = {"benchmark": "batch_difference", "machine": machine(), "results": results}
    write_report(arguments.json, report)
    print(json.dumps(results))


def largest_difference(tts: TTS, lines: list[str]) -> float:
    streams = [
        tts.stream(line, seed=n, chunk_frames=1 + n % 5, trim_start=False)
        for n, line in enumerate(lines)
    ]
    chunks: list[list[np.ndarray[Any, Any]]] = [[] for _ in streams]
    for round_ in zip_longest(*streams):
        for kept, chunk in zip(chunks, round_, strict=True):
            if chunk is not None:
                kept.append(chunk.samples)
    alone = [tts.speak(line, seed=n, trim=False) for n, line in enumerate(lines)]
    pairs = zip(map(np.concatenate, chunks), alone, strict=True)
    return max(float(np.abs(streamed - audio.samples).max()) for streamed, audio in pairs)


def decibels(exact: Audio, other: Audio) -> float:
    assert np.array_equal(exact.codes, other.codes)
    noise = exact.samples - other.samples
    return float(10 * np.log10((exact.samples**2).sum() / (noise**2).sum()))


def write_recordings(path: Path, spoken: list[Audio]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    recordings = {
        f"hard_{FIRST + n}": (np.clip(audio.samples, -1, 1) * 32767).round().astype("<i2")
        for n, audio in enumerate(spoken)
    }
    np.savez(path, **recordings)


if __name__ == "__main__":
    main()
