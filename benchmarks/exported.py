"""ONNX graphs of the embedded voice: size, draws compared with float32, word errors and speed.

    python benchmarks/exported.py benchmarks/texts/hard.txt --first 41 --lines 20 \
        --json benchmarks/results/onnx-mini.json

float32 graphs make the codes of the package. `agreement` is the share of frames whose draw is the
same after the same codes, with the same noise: of codebook 0, and of all codebooks. The other
columns are of free speech with the same seeds. Whisper-base transcribes it, where it is installed.
`cpu_ms` is the CPU time of one thread per frame. A frame has 80 ms.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from report import write_report

from vivace.checkpoint import EMBEDDED, Checkpoint
from vivace.cli.bench.machine import machine
from vivace.errors import RequestError
from vivace.export.graph import StoredWeights
from vivace.export.runner import OnnxVoice
from vivace.export.write import export_onnx
from vivace.recogniser import Recogniser, check_recogniser, word_error_rate
from vivace.text.normalize import normalize_text

WEIGHTS: tuple[StoredWeights, ...] = ("float32", "float16", "int8")
VOICES = ("heart", "michael")
FRAMES_PER_CALL = 4  # of the codec

Codes = NDArray[np.int32]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("texts", type=Path, help="one text per line")
    parser.add_argument("--first", type=int, default=1, help="the line to begin with")
    parser.add_argument("--lines", type=int, default=20, help="number of lines")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    lines = arguments.texts.read_text(encoding="utf-8").splitlines()[arguments.first - 1 :]
    lines = lines[: arguments.lines]
    report: dict[str, Any] = {
        "benchmark": "exported",
        "machine": machine() | {"threads": arguments.threads},
        "lines": len(lines),
        "weights": compare(lines, arguments.threads),
    }
    write_report(arguments.json, report)
    print(json.dumps(report, indent=1))


def compare(lines: Sequence[str], num_threads: int) -> dict[str, Any]:
    checkpoint = Checkpoint.open(EMBEDDED)
    tokenizer, recogniser = checkpoint.load_tokenizer(), load_recogniser()
    texts = [tokenizer.encode(normalize_text(line)) for line in lines]
    reference: list[Codes] = []
    report: dict[str, Any] = {}
    for weights in WEIGHTS:
        with tempfile.TemporaryDirectory() as folder:
            export_onnx(checkpoint, Path(folder), weights)
            voice = OnnxVoice(Path(folder), num_threads=num_threads)
        speech, seconds = speak(voice, texts)
        reference = reference or speech
        samples = [voice.decode(codes, voice.new_stream()) for codes in speech]
        errors = [
            word_error_rate(line, recogniser(each, voice.manifest["sample_rate"]))
            for line, each in zip(lines, samples, strict=True)
            if recogniser is not None
        ]
        size = sum(facts["bytes"] for facts in voice.manifest["files"].values())
        report[weights] = {
            "mb": round(size / 1e6, 1),
            "agreement": agree(voice, texts, reference),
            "word_errors_percent": round(100 * float(np.mean(errors)), 1) if errors else None,
            "seconds_of_speech": round(sum(map(len, samples)) / voice.manifest["sample_rate"], 1),
            **seconds,
        }
    return report


def load_recogniser() -> Recogniser | None:
    try:
        check_recogniser()
    except RequestError:
        return None
    return Recogniser()


def speak(voice: OnnxVoice, texts: Sequence[Sequence[int]]) -> tuple[list[Codes], dict[str, Any]]:
    """Codes of each text, and times per frame."""
    cpu, wall = time.process_time(), time.perf_counter()
    speech = [
        np.array(list(voice.frames(ids, seeded(voice, seed), voice=VOICES[seed % 2])))
        for seed, ids in enumerate(texts)
    ]
    frame_cpu = time.process_time() - cpu
    cpu = time.process_time()
    for codes in speech:
        stream = voice.new_stream()
        for start in range(0, len(codes), FRAMES_PER_CALL):
            voice.decode(codes[start : start + FRAMES_PER_CALL], stream)
    codec_cpu, total = time.process_time() - cpu, time.perf_counter() - wall
    num_frames = sum(map(len, speech))
    audio_s = num_frames * voice.manifest["samples_per_frame"] / voice.manifest["sample_rate"]
    return speech, {
        "cpu_ms": {
            "frame": round(1e3 * frame_cpu / num_frames, 2),
            "codec": round(1e3 * codec_cpu / num_frames, 2),
        },
        "times_real_time": round(audio_s / total, 2),
    }


def agree(
    voice: OnnxVoice, texts: Sequence[Sequence[int]], reference: Sequence[Codes]
) -> dict[str, float]:
    """Percentage of draws that equal the reference's, after the codes of the reference."""
    equal = []
    for seed, (ids, codes) in enumerate(zip(texts, reference, strict=True)):
        name = VOICES[seed % 2]
        drawn = voice.frames(ids, seeded(voice, seed), voice=name, forced=codes)
        equal.append(np.array(list(drawn)) == codes)
    joined = np.concatenate(equal)
    return {
        "first_percent": round(100 * float(joined[:, 0].mean()), 1),
        "all_percent": round(100 * float(joined.all(axis=1).mean()), 1),
    }


def seeded(voice: OnnxVoice, seed: int) -> Any:
    return dataclasses.replace(voice.sampling, seed=seed)


if __name__ == "__main__":
    main()
