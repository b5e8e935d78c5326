"""Many streams: throughput at a fixed concurrency, and latency at a given request rate."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Thread
from typing import Any

from vivace.cli.bench.latency import TEXT, Subject
from vivace.errors import QueueFullError


@dataclass(frozen=True, slots=True)
class Heard:
    """What one client measured of its stream."""

    first_audio_ms: float
    audio_s: float
    num_underruns: int  # chunks that arrived after all earlier audio had been played


def listen(subject: Subject, num_frames: int, seed: int) -> Heard:
    """Read a stream as fast as it comes; count the underruns that real-time playback would have."""
    began = time.perf_counter()
    played_until: float | None = None
    first_ms, audio_s, num_underruns = 0.0, 0.0, 0
    for chunk in subject.tts.stream(TEXT, seed=seed, **subject.length(num_frames)):
        now = time.perf_counter()
        seconds = len(chunk.samples) / chunk.sample_rate
        if played_until is None:
            first_ms, played_until = 1000 * (now - began), now
        elif seconds and now > played_until:
            num_underruns += 1
            played_until = now
        played_until += seconds
        audio_s += seconds
    return Heard(first_ms, audio_s, num_underruns)


def measure_throughput(
    subject: Subject, num_streams: int, *, num_frames: int, rounds: int
) -> dict[str, Any]:
    """`num_streams` clients, each starting its next stream when the last one ends."""
    heard: list[Heard] = []

    def listen_again(listener: int) -> None:
        for number in range(rounds):
            heard.append(listen(subject, num_frames, 1000 * listener + number))

    began = time.perf_counter()
    with ThreadPoolExecutor(num_streams) as pool:
        list(pool.map(listen_again, range(num_streams)))  # raises the first error
    seconds = time.perf_counter() - began
    firsts = [one.first_audio_ms for one in heard]
    return {
        "streams": num_streams,
        "frames": num_frames,
        "requests": len(heard),
        "audio_s_per_s": round(sum(one.audio_s for one in heard) / seconds, 2),
        "first_audio_ms": percentiles(firsts),
        "underruns": sum(one.num_underruns for one in heard),
    }


def measure_arrivals(
    subject: Subject, rate: float, *, seconds: float, num_frames: int
) -> dict[str, Any]:
    """Poisson arrivals of `rate` requests a second, independent of when earlier ones end."""
    heard: list[Heard] = []
    errors: list[Exception] = []

    def answer(seed: int) -> None:
        try:
            heard.append(listen(subject, num_frames, seed))
        except Exception as error:  # counted below
            errors.append(error)

    generator = random.Random(7)
    threads: list[Thread] = []
    began, due = time.perf_counter(), 0.0
    while (due := due + generator.expovariate(rate)) < seconds:
        time.sleep(max(0.0, began + due - time.perf_counter()))
        threads.append(Thread(target=answer, args=(len(threads),)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    failures = [error for error in errors if not isinstance(error, QueueFullError)]
    return {
        "requests_per_s": rate,
        "requests": len(threads),
        "refused": len(errors) - len(failures),
        "failed": len(failures),
        "first_failure": repr(failures[0]) if failures else None,
        "first_audio_ms": percentiles([one.first_audio_ms for one in heard]),
        "streams_with_underruns": sum(one.num_underruns > 0 for one in heard),
    }


def percentiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        f"p{share}": round(ordered[min(len(ordered) - 1, len(ordered) * share // 100)], 2)
        for share in (50, 95, 99)
        if ordered
    }
