r"""Measures the watermark: detection after transformations, false detections, quality and cost.

    pip install -e ".[mark,quality]" && apt install espeak-ng
    pip install --no-deps distillmos==0.9.1 xls-r-sqa==0.1.0
    PYTHONPATH=src:. python scripts/make_finetune_data.py build/george --voice bm_george
    python benchmarks/watermark.py --json benchmarks/results/watermark-mini.json \
        --recordings build/george/wavs

`--parts` measures parts again and keeps the others in the file. The part `perth` runs the package's
own code too, which needs `pip install resemble-perth librosa torchaudio`.
Both embedded voices speak template lines; recordings shorter than 3 s are left out. Long clips are
20 recordings in a row. Recordings and transcripts are kept in `--work`, and a repeated run reuses
them. Unmarked audio is the same speech, espeak-ng, noise, and artificial tones. The detector's
thresholds were chosen on it. The part `verified` has other sounds: those of `unmarked_sounds.py`,
other voices of espeak-ng, and the recordings of another synthesizer in `--recordings`.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from intervals import draw, interval
from judges import NaturalnessJudge, Recogniser
from unmarked_sounds import RATE, make_noises, make_tones, make_verified
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
    THRESHOLD,
    Watermark,
    WatermarkResult,
    WatermarkStream,
)
from vivace.mark.watermark_pattern import MIN_CORRELATION, MIN_SUPPORT

Row = dict[str, Any]
Change = Callable[[Samples], tuple[Samples, int]]

VOICES = ("heart", "michael")
MIN_S = 3.0
NUM_JOINED = 20  # recordings of a long clip
PERTH_CHANGES = ("untouched", "mp3 64 kbit/s", "opus 24 kbit/s", "resampled to 16 kHz",
                 "white noise, 20 dB", "1 s from the middle")  # fmt: skip
PARTS = ("cost", "detection", "unmarked", "verified", "perth", "quality")
ESPEAK_VOICES = ("en-us", "en-gb", "en-us+f3", "en-gb+m5", "de", "fr+f2")
OTHER_ESPEAK_VOICES = ("en-gb-scotland", "en-us+f1", "en-gb+m3", "es", "it+f4", "pl", "sv+m2", "nl")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("build/watermark"))
    parser.add_argument("--lines", type=int, default=220, help="lines to speak")
    parser.add_argument("--espeak", type=int, default=140, help="unmarked clips of espeak-ng")
    parser.add_argument("--recordings", type=Path, help="folder of unmarked wav files")
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
        "verified": lambda: measure_verified(mark, arguments),
        "perth": lambda: measure_perth(mark, clips),
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
            "min_support": MIN_SUPPORT,
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


def speak_espeak(
    work: Path, count: int, voices: Sequence[str] = ESPEAK_VOICES, seed: int = 34
) -> Iterator[Samples]:
    """Speech of another synthesizer: voices, speeds and pitches in turn."""
    for number, line in enumerate(template_lines(count, seed=seed)):
        name = "espeak" if seed == 34 else f"espeak-{seed}"
        path = work / f"{name}-{number:03}.wav"
        if not path.exists():
            voice = voices[number % len(voices)]
            speed, pitch = str(130 + number % 7 * 15), str(20 + number % 5 * 15)
            command = ["espeak-ng", "-v", voice, "-s", speed, "-p", pitch, "-w", str(path), line]
            subprocess.run(command, check=True)
        yield read_clip(path)


def read_clip(path: Path) -> Samples:
    recording = read_audio(path)
    return resample(recording.samples, recording.sample_rate, RATE)


# -- detection ----------------------------------------------------------------------------------


def measure_cost(mark: Watermark, clip: Samples) -> Row:
    """Milliseconds of CPU time per second of audio, the best of three runs."""
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
        began = time.process_time()  # does not depend on other work of the machine
        call()
        times.append(time.process_time() - began)
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
    rows = detect_kinds(mark, kinds)
    for name, change in list(changes().items())[1:]:
        rows[f"embedded voice, {name}"] = summarize([mark.detect(*change(x)) for x in clips])
    return rows


def measure_verified(mark: Watermark, arguments: argparse.Namespace) -> Row:
    """False detections of sounds that were not used to choose the thresholds."""
    paths = sorted(arguments.recordings.glob("*.wav")) if arguments.recordings else []
    speech = speak_espeak(arguments.work, arguments.espeak, OTHER_ESPEAK_VOICES, seed=36)
    return detect_kinds(
        mark,
        {
            **make_verified(),
            "espeak-ng, other voices": list(speech),
            "recordings": [read_clip(path) for path in paths],
        },
    )


def detect_kinds(mark: Watermark, kinds: Mapping[str, Sequence[Samples]]) -> Row:
    rows = {
        name: summarize([mark.detect(clip, RATE) for clip in kind])
        for name, kind in kinds.items()
        if kind
    }
    total = {key: sum(row[key] for row in rows.values()) for key in ("clips", "detected")}
    return {**rows, "all": {**total, "interval_percent": wilson(total["detected"], total["clips"])}}


def measure_perth(mark: Watermark, clips: Sequence[Samples]) -> Row:
    """Detect marks of Vivace with the package's detector, and marks of the package with Vivace."""
    perth = import_module("perth.perth_net.perth_net_implicit.perth_watermarker")
    package = perth.PerthImplicitWatermarker()

    def detect(samples: Samples, rate: int) -> WatermarkResult:
        score = float(package.get_watermark(samples, rate, round=False))
        return WatermarkResult(is_marked=round(score) == 1, confidence=score)

    ours = [mark_clip(mark, clip) for clip in clips]
    theirs = [np.asarray(package.apply_watermark(clip, RATE), np.float32) for clip in clips]
    rows: Row = {}
    for name in PERTH_CHANGES:
        change = changes()[name]
        rows[name] = {
            "our mark, Perth's detector": summarize([detect(*change(clip)) for clip in ours]),
            "Perth's mark, our detector": summarize([mark.detect(*change(x)) for x in theirs]),
            "Perth's mark, Perth's detector": summarize([detect(*change(x)) for x in theirs]),
        }
    tones = [detect(clip, RATE) for clip in make_tones()]
    speech = [detect(clip, RATE) for clip in clips]
    return {
        **rows,
        "unmarked, Perth's detector": {
            "embedded voice": summarize(speech),
            "tones, chords, sweeps": summarize(tones),
        },
    }


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
    ends = (100 * (middle + sign * half) / (1 + z * z / total) for sign in (-1, 1))
    return [round(abs(end), 1) for end in ends]


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
    before, after = values.mean(0)
    return {
        "before": round(float(before), 3),
        "after": round(float(after), 3),
        "difference": round(float(differences.mean()), 3),
        "interval": interval(draw(differences).mean(1), digits=3),
    }


if __name__ == "__main__":
    main()
