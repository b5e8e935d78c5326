"""Many streams: how much audio a second, and who waits how long when requests just come."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock, Thread
from typing import Any

from vivace.cli.bench.latency import TEXT, Subject
from vivace.errors import QueueFullError


@dataclass(frozen=True, slots=True)
class Heard:
    """One stream, as its listener had it."""

    first_audio_ms: float
    audio_s: float
    num_underruns: int  # chunks that came after the sound before them had been played


def listen(subject: Subject, num_frames: int, seed: int) -> Heard:
    """Read a stream as fast as it comes and note what a player would have heard."""
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
    """So many listeners, each with its next stream as soon as the last is over."""
    heard: list[Heard] = []

    def listen_again(listener: int) -> None:
        for number in range(rounds):
            heard.append(listen(subject, num_frames, 1000 * listener + number))

    began = time.perf_counter()
    _run_all([lambda n=n: listen_again(n) for n in range(num_streams)])  # type: ignore[misc]
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
    """Requests that come at random, so many a second, whatever became of those before them."""
    heard: list[Heard] = []
    num_refused = 0
    lock = Lock()

    def answer(seed: int) -> None:
        nonlocal num_refused
        try:
            one = listen(subject, num_frames, seed)
        except QueueFullError:
            with lock:
                num_refused += 1
            return
        with lock:
            heard.append(one)

    generator = random.Random(7)
    threads: list[Thread] = []
    began, due = time.perf_counter(), 0.0
    while (due := due + generator.expovariate(rate)) < seconds:
        time.sleep(max(0.0, began + due - time.perf_counter()))
        threads.append(Thread(target=answer, args=(len(threads),)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return {
        "requests_per_s": rate,
        "requests": len(threads),
        "refused": num_refused,
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


def _run_all(jobs: Sequence[Callable[[], None]]) -> None:
    """All at once; the first error is heard."""
    errors: list[BaseException] = []

    def run(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            errors.append(error)

    threads = [Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
