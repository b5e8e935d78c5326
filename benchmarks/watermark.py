"""Measures the watermark: detection after transformations, false detections, quality and cost.

    pip install -e ".[mark,quality]" && apt install espeak-ng
    pip install --no-deps distillmos==0.9.1 xls-r-sqa==0.1.0
    python benchmarks/watermark.py --json benchmarks/results/watermark-mini.json

`--parts` measures parts again and keeps the others in the file.
Both embedded voices speak template lines; recordings shorter than 3 s are left out. Long clips are
20 recordings in a row. Recordings and transcripts are kept in `--work`, and a repeated run reuses
them. Unmarked audio is the same speech, espeak-ng, noise, and artificial tones.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from judges import NaturalnessJudge, Recogniser
from words import count_errors

sys.path.insert(0, str(Path(__file__).parents[1]))
from recipes.mini_voice.templates import template_lines
from vivace import TTS
from vivace.audio.encode import open_encoder
from vivace.audio.files import read_audio
from vivace.audio.resample import resample
from vivace.audio.wav import Samples
from vivace.cli.bench.machine import machine
from vivace.mark.watermark import (
    MIN_CORRELATION,
    THRESHOLD,
    Watermark,
    WatermarkResult,
    WatermarkStream,
)

Row = dict[str, Any]
Change = Callable[[Samples], tuple[Samples, int]]

RATE = 24_000
VOICES = ("heart", "michael")
MIN_S = 3.0
NUM_JOINED = 20  # recordings of a long clip
NUM_NOISES, NUM_TONES = 70, 70
NUM_DRAWS = 4_000
PARTS = ("cost", "detection", "unmarked", "quality")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("build/watermark"))
    parser.add_argument("--lines", type=int, default=220, help="lines to speak")
    parser.add_argument("--espeak", type=int, default=140, help="unmarked clips of espeak-ng")
    parser.add_argument("--judged", type=int, default=60, help="clips that are judged")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="default: all")
    arguments = parser.parse_args()
    mark, report = Watermark.load(), Report(arguments.json)
    spoken = speak(arguments.work, arguments.lines)
    lines = [(clip, text) for clip, text in spoken if len(clip) >= MIN_S * RATE]
    clips, unmarked = [clip for clip, _ in lines], [clip for clip, _ in spoken]
    measure: dict[str, Callable[[], Row]] = {
        "cost": lambda: measure_cost(mark, clips[0]),
        "detection": lambda: measure_detection(mark, clips),
        "unmarked": lambda: measure_unmarked(mark, unmarked, arguments.work, arguments.espeak),
        "quality": lambda: measure_quality(mark, lines[: arguments.judged]),
    }
    for part in arguments.parts:
        report.add(part, measure[part]())


class Report:
    """The result file. It is written after every part, and keeps parts of earlier runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._values: Row = json.loads(path.read_text("utf-8")) if path.exists() else {}
        self._values |= {
            "benchmark": "watermark",
            "machine": machine(),
            "threshold": THRESHOLD,
            "min_correlation": MIN_CORRELATION,
            "delay_ms": WatermarkStream.delay_s * 1_000,
        }

    def add(self, name: str, value: Row) -> None:
        self._values[name] = value
        self._path.write_text(json.dumps(self._values, indent=1) + "\n", encoding="utf-8")
        print(name, json.dumps(value), flush=True)


# -- audio --------------------------------------------------------------------------------------


def speak(work: Path, num_lines: int) -> list[tuple[Samples, str]]:
    """Recordings of the embedded voices with their texts."""
    work.mkdir(parents=True, exist_ok=True)
    different = dict.fromkeys(template_lines(20 * num_lines, seed=33))
    lines = [line for line in different if 9 <= len(line.split()) <= 20][:num_lines]
    found = []
    with TTS.load(device="cpu") as tts:
        for number, line in enumerate(lines):
            voice = VOICES[number % len(VOICES)]
            path = work / f"{number:03}_{voice}.npy"
            if not path.exists():
                np.save(path, tts.speak(line, voice=voice, seed=number).samples)
            found.append((np.load(path), line))
    return found


def speak_espeak(work: Path, count: int) -> Iterator[Samples]:
    """Speech of another synthesizer: voices, speeds and pitches in turn."""
    for number, line in enumerate(template_lines(count, seed=34)):
        path = work / f"espeak-{number:03}.wav"
        if not path.exists():
            voice = ("en-us", "en-gb", "en-us+f3", "en-gb+m5", "de", "fr+f2")[number % 6]
            speed, pitch = str(130 + number % 7 * 15), str(20 + number % 5 * 15)
            command = ["espeak-ng", "-v", voice, "-s", speed, "-p", pitch, "-w", str(path), line]
            subprocess.run(command, check=True)
        recording = read_audio(path)
        yield resample(recording.samples, recording.sample_rate, RATE)


def make_noises() -> Iterator[Samples]:
    rng = np.random.default_rng(1)
    for number in range(NUM_NOISES):
        noise = rng.standard_normal(4 * RATE)
        noise = np.cumsum(noise) / 300 if number % 2 else noise * 10 ** rng.uniform(-4, -0.5)
        yield np.clip(noise, -1, 1).astype(np.float32)


def make_tones() -> Iterator[Samples]:
    """Tones, harmonic sounds, chords and sweeps of 3 s."""
    rng, seconds = np.random.default_rng(2), np.arange(3 * RATE) / RATE
    for number in range(NUM_TONES):
        base = math.exp(rng.uniform(math.log(60), math.log(1_500)))
        pitches = (
            [base],
            [base * k for k in range(1, 1 + min(20, int(10_000 / base)))],
            list(rng.uniform(100, 2_000, 5)),
            [np.geomspace(base, 2 * base, len(seconds))],
        )[number % 4]
        phases = [np.cumsum(np.broadcast_to(pitch, seconds.shape)) / RATE for pitch in pitches]
        sound = sum(np.sin(2 * np.pi * phase) for phase in phases) / (2 * len(pitches))
        yield np.asarray(sound, np.float32)


# -- detection ----------------------------------------------------------------------------------


def measure_cost(mark: Watermark, clip: Samples) -> Row:
    """Milliseconds per second of audio, the best of three runs."""
    samples = np.resize(clip, 10 * RATE)
    marked = mark_clip(mark, samples)

    def stream() -> None:
        opened = mark.stream(RATE)
        for start in range(0, len(samples), 1_920):
            opened.feed(samples[start : start + 1_920])

    return {
        "mark_ms_per_s": best_ms(stream) / 10,
        "detect_ms_per_s": best_ms(lambda: mark.detect(marked, RATE)) / 10,
    }


def best_ms(call: Callable[[], object]) -> float:
    times = []
    for _ in range(3):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return round(1_000 * min(times), 2)


def measure_detection(mark: Watermark, clips: Sequence[Samples]) -> Row:
    marked = [mark_clip(mark, clip) for clip in clips]
    lengths = [len(clip) / RATE for clip in clips]
    rows: Row = {
        "clips": len(clips),
        "seconds": [round(min(lengths), 1), round(max(lengths), 1)],
        "signal_to_change_db": round(float(np.median(list(map(change_db, clips, marked)))), 1),
        "samples_at_full_scale": sum(int((np.abs(clip) >= 1).sum()) for clip in marked),
    }
    for name, change in changes().items():
        rows[name] = summarize([mark.detect(*change(clip)) for clip in marked])
    joined = [
        np.concatenate(clips[start : start + NUM_JOINED])
        for start in range(0, len(clips) - NUM_JOINED + 1, NUM_JOINED)
    ]
    long = [mark.detect(mark_clip(mark, clip), RATE) for clip in joined]
    rows[f"untouched, {NUM_JOINED} recordings"] = summarize(long) if long else None
    return rows


def changes() -> dict[str, Change]:
    """Transformations of marked audio, such as compression, by name."""
    return {
        "untouched": lambda x: (x, RATE),
        "mp3 64 kbit/s": lambda x: compress(x, "mp3", 64_000),
        "opus 24 kbit/s": lambda x: compress(x, "opus", 24_000),
        "resampled to 16 kHz": lambda x: (resample(x, RATE, 16_000), 16_000),
        "resampled to 8 kHz": lambda x: (resample(x, RATE, 8_000), 8_000),
        "white noise, 20 dB": lambda x: (add_noise(x, 20), RATE),
        "white noise, 10 dB": lambda x: (add_noise(x, 10), RATE),
        "without the first 30 %": lambda x: (x[round(0.3 * len(x)) :], RATE),
        "without the last 30 %": lambda x: (x[: -round(0.3 * len(x))], RATE),
        "1 s from the middle": lambda x: (x[(len(x) - RATE) // 2 :][:RATE], RATE),
    }


def measure_unmarked(mark: Watermark, clips: Sequence[Samples], work: Path, num_espeak: int) -> Row:
    kinds = {
        "embedded voice": clips,
        "espeak-ng": list(speak_espeak(work, num_espeak)),
        "noise": list(make_noises()),
        "tones, chords, sweeps": list(make_tones()),
    }
    rows = {
        name: summarize([mark.detect(clip, RATE) for clip in kind])
        for name, kind in kinds.items()
        if kind
    }
    for name, change in list(changes().items())[1:]:
        rows[f"embedded voice, {name}"] = summarize([mark.detect(*change(x)) for x in clips])
    total = [row for name, row in rows.items() if name in kinds]
    rows["all"] = {key: sum(row[key] for row in total) for key in ("clips", "detected")}
    return rows


def summarize(results: Sequence[WatermarkResult]) -> Row:
    confidences = [result.confidence for result in results]
    num_detected = sum(result.is_marked for result in results)
    return {
        "clips": len(results),
        "detected": num_detected,
        "percent": round(100 * num_detected / len(results), 1),
        "interval_percent": wilson(num_detected, len(results)),
        "lowest": round(min(confidences), 3),
        "median": round(float(np.median(confidences)), 3),
        "highest": round(max(confidences), 3),
    }


def wilson(num_found: int, total: int) -> list[float]:
    """The 95 % interval of a share, in percent."""
    z, share = 1.96, num_found / total
    middle = share + z * z / (2 * total)
    half = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return [round(100 * (middle + sign * half) / (1 + z * z / total), 1) for sign in (-1, 1)]


def mark_clip(mark: Watermark, clip: Samples) -> Samples:
    return mark.stream(RATE).feed(clip)


def change_db(clip: Samples, marked: Samples) -> float:
    return float(10 * np.log10(np.sum(clip**2) / np.sum((clip - marked) ** 2)))


def compress(samples: Samples, format: str, bit_rate: int) -> tuple[Samples, int]:
    encoder = open_encoder(format, RATE, bit_rate)
    file = io.BytesIO()
    file.write(encoder.encode(samples))
    file.write(encoder.finish())
    recording = read_audio(file.getvalue(), trusted=True)
    return recording.samples, recording.sample_rate


def add_noise(samples: Samples, ratio_db: float) -> Samples:
    noise = np.random.default_rng(len(samples)).standard_normal(len(samples))
    level = math.sqrt(float(np.mean(samples**2)) / 10 ** (ratio_db / 10))
    return (samples + level * noise).astype(np.float32)


# -- quality ------------------------------------------------------------------------------------


def measure_quality(mark: Watermark, lines: Sequence[tuple[Samples, str]]) -> Row:
    """Word errors and DistillMOS before and after, and paired intervals of the difference."""
    recognise, rate_mos = Recogniser(), NaturalnessJudge()
    figures = np.array(
        [
            [
                (count_errors(text, recognise(x, RATE)).errors, rate_mos(x, RATE))
                for x in (clip, mark_clip(mark, clip))
            ]
            for clip, text in lines
        ]
    )  # [lines, before and after, errors and rating]
    num_words = np.array([count_errors(text, text).words for _, text in lines])
    errors = 100 * figures[:, :, 0] / num_words.mean()
    return {
        "judges": "Whisper-base int8 (faster-whisper, beam 5), DistillMOS",
        "lines": len(lines),
        "words": int(num_words.sum()),
        "word_errors_percent": compare(errors),
        "distillmos": compare(figures[:, :, 1]),
    }


def compare(values: Any) -> Row:
    """Means before and after [n, 2], and the bootstrap interval of their difference."""
    differences = values[:, 1] - values[:, 0]
    rng = np.random.default_rng(1)
    drawn = differences[rng.integers(0, len(values), (NUM_DRAWS, len(values)))].mean(1)
    before, after = values.mean(0)
    return {
        "before": round(float(before), 3),
        "after": round(float(after), 3),
        "difference": round(float(differences.mean()), 3),
        "interval": [round(float(end), 3) for end in np.percentile(drawn, (2.5, 97.5))],
    }


if __name__ == "__main__":
    main()
