"""Many streams: throughput at a fixed concurrency, and latency at a given request rate.

One event loop reads them all, as in the server: a thread for each would mostly wait for the GIL.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vivace.cli.bench.latency import TEXT, Subject
from vivace.errors import QueueFullError


@dataclass(frozen=True, slots=True)
class Heard:
    """What one client measured of its stream."""

    first_audio_ms: float
    audio_s: float
    num_underruns: int  # chunks that arrived after all earlier audio had been played


async def listen(subject: Subject, num_frames: int, seed: int, began: float | None = None) -> Heard:
    """Read a stream as fast as it comes; count the underruns that real-time playback would have.

    It waits from `began` on, so that a busy loop is not flattered.
    """
    began = time.perf_counter() if began is None else began
    played_until: float | None = None
    first_ms, audio_s, num_underruns = 0.0, 0.0, 0
    async for chunk in subject.tts.astream(TEXT, seed=seed, **subject.length(num_frames)):
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

    async def listen_again(listener: int) -> None:
        for number in range(rounds):
            heard.append(await listen(subject, num_frames, 1000 * listener + number))

    async def listen_all() -> None:
        await asyncio.gather(*map(listen_again, range(num_streams)))  # raises the first error

    began = time.perf_counter()
    asyncio.run(listen_all())
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

    async def answer(seed: int, began: float) -> None:
        try:
            heard.append(await listen(subject, num_frames, seed, began))
        except Exception as error:  # counted below
            errors.append(error)

    async def arrive() -> int:
        generator, tasks = random.Random(7), list[asyncio.Task[None]]()
        began, due = time.perf_counter(), 0.0
        while (due := due + generator.expovariate(rate)) < seconds:
            await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
            tasks.append(asyncio.create_task(answer(len(tasks), began + due)))
        await asyncio.gather(*tasks)
        return len(tasks)

    num_requests = asyncio.run(arrive())
    failures = [error for error in errors if not isinstance(error, QueueFullError)]
    return {
        "requests_per_s": rate,
        "requests": num_requests,
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
