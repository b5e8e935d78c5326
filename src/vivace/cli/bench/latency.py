"""Measures a single stream: first audio, real-time factor, and time per stage of a frame."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from vivace.engine.engine import Engine
from vivace.tts import TTS

TEXT = "The old clock on the wall struck nine, and everybody in the room looked up at once."
T = TypeVar("T")
CHUNKS = (1, 2, 4, 8, 12)
AUDIBLE_FRAMES = 16  # more than the silence at the start


@dataclass(frozen=True, slots=True)
class Subject:
    """The measured model and the options of its requests."""

    tts: TTS
    options: dict[str, Any]  # voice, language, instruct

    def length(self, num_frames: int) -> dict[str, Any]:
        """Options for an utterance of exactly `num_frames` frames."""
        return {
            **self.options,
            "max_frames": num_frames,
            "min_frames": num_frames,
            "guard": False,
        }


def measure_latency(subject: Subject, *, num_frames: int, repeats: int) -> dict[str, Any]:
    """Medians over `repeats`, after a warm-up call."""
    subject.tts.speak(TEXT, seed=0, **subject.length(num_frames))
    first_audio_ms(subject, 1)
    return {
        "frames": num_frames,
        "repeats": repeats,
        "first_audio_ms": _median([first_audio_ms(subject, 1) for _ in range(repeats)]),
        "audible_ms": _median([audible_ms(subject) for _ in range(repeats)]),
        "times_real_time": _median([real_time(subject, num_frames) for _ in range(repeats)]),
        "parts": measure_parts(subject, num_frames, repeats),
        "chunks": [measure_chunks(subject, size, num_frames, repeats) for size in CHUNKS],
    }


def first_audio_ms(subject: Subject, chunk_frames: int) -> float:
    """Time from the call to the first samples, including tokenization."""
    began = time.perf_counter()
    options = subject.length(4 * chunk_frames) | {"chunk_frames": chunk_frames}
    with subject.tts.stream(TEXT, seed=1, trim_start=False, **options) as stream:
        next(stream)
        return 1000 * (time.perf_counter() - began)


def audible_ms(subject: Subject) -> float:
    """Time from the call to the first sample above -50 dBFS."""
    began = time.perf_counter()
    with subject.tts.stream(TEXT, seed=1, **subject.length(AUDIBLE_FRAMES)) as stream:
        next(stream)  # without the silence at the start
        return 1000 * (time.perf_counter() - began)


def real_time(subject: Subject, num_frames: int) -> float:
    """Seconds of audio per second of the whole call, codec included."""
    began = time.perf_counter()
    audio = subject.tts.speak(TEXT, seed=2, trim=False, **subject.length(num_frames))
    return audio.duration_s / (time.perf_counter() - began)


def measure_chunks(
    subject: Subject, chunk_frames: int, num_frames: int, repeats: int
) -> dict[str, Any]:
    """Time to first audio and real-time factor of a stream with chunks of this size."""
    firsts, speeds = [], []
    for seed in range(repeats):
        began = time.perf_counter()
        stream = subject.tts.stream(
            TEXT,
            seed=seed,
            chunk_frames=chunk_frames,
            trim_start=False,
            **subject.length(num_frames),
        )
        next(stream)
        firsts.append(1000 * (time.perf_counter() - began))
        for _ in stream:
            pass
        speeds.append(stream.usage.audio_s / (time.perf_counter() - began))
    return {
        "chunk_frames": chunk_frames,
        "first_audio_ms": _median(firsts),
        "times_real_time": _median(speeds),
    }


def measure_parts(subject: Subject, num_frames: int, repeats: int) -> dict[str, float]:
    """Milliseconds of the prompt, and per frame of model, codec and everything else."""
    rows = []
    for seed in range(repeats):
        options = {"seed": seed, "trim": False, **subject.length(num_frames)}
        speak = partial(subject.tts.speak, TEXT, **options)
        _, times = measure_backend_times(subject.tts.engine, speak)
        rows.append(times)
    ms = {name: 1000 * statistics.median(row[name] for row in rows) for name in rows[0]}
    per_frame = {
        f"{name}_ms_per_frame": round(ms[name] / num_frames, 3)
        for name in ("model", "codec", "host")
    }
    return {"prompt_ms": round(ms["prompts"], 3), **per_frame}


def measure_backend_times(engine: Engine, work: Callable[[], T]) -> tuple[T, dict[str, float]]:
    """The result of `work`, and the seconds of prompts, model, codec and everything else."""
    before, began = dataclasses.replace(engine.backend_times), time.perf_counter()
    result = work()
    whole, after = time.perf_counter() - began, engine.backend_times
    parts = {
        "prompts": after.admit_s - before.admit_s,
        "model": after.step_s - before.step_s,
        "codec": after.render_s - before.render_s,
    }
    return result, {**parts, "host": whole - sum(parts.values())}


def _median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 3)
