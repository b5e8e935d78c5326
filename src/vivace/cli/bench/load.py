"""Measures many streams: throughput at a fixed concurrency, and latency at a request rate.

One event loop reads all streams, as in the server. One thread per stream would mostly wait for the
GIL.
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
class ClientResult:
    """Measurements of one client."""

    first_audio_ms: float
    audio_s: float
    num_underruns: int  # chunks that arrived after all earlier audio had been played


async def run_client(
    subject: Subject, num_frames: int, seed: int, began: float | None = None
) -> ClientResult:
    """Read a stream and count the underruns of a playback in real time.

    Latency is measured from `began`, so that the delay of a busy event loop is included.
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
    return ClientResult(first_ms, audio_s, num_underruns)


def measure_throughput(
    subject: Subject, num_streams: int, *, num_frames: int, rounds: int
) -> dict[str, Any]:
    """`num_streams` clients with `rounds` consecutive streams each."""
    results: list[ClientResult] = []

    async def run_rounds(client: int) -> None:
        for number in range(rounds):
            results.append(await run_client(subject, num_frames, 1000 * client + number))

    async def run_all() -> None:
        await asyncio.gather(*map(run_rounds, range(num_streams)))  # raises the first error

    began = time.perf_counter()
    asyncio.run(run_all())
    seconds = time.perf_counter() - began
    return {
        "streams": num_streams,
        "frames": num_frames,
        "requests": len(results),
        "audio_s_per_s": round(sum(result.audio_s for result in results) / seconds, 2),
        "first_audio_ms": percentiles([result.first_audio_ms for result in results]),
        "underruns": sum(result.num_underruns for result in results),
    }


def measure_arrivals(
    subject: Subject, rate: float, *, seconds: float, num_frames: int
) -> dict[str, Any]:
    """Poisson arrivals of `rate` requests per second, independent of earlier requests."""
    results: list[ClientResult] = []
    errors: list[Exception] = []

    async def run(seed: int, began: float) -> None:
        try:
            results.append(await run_client(subject, num_frames, seed, began))
        except Exception as error:  # counted below
            errors.append(error)

    async def run_all() -> int:
        generator, tasks = random.Random(7), list[asyncio.Task[None]]()
        began, due = time.perf_counter(), 0.0
        while (due := due + generator.expovariate(rate)) < seconds:
            await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
            tasks.append(asyncio.create_task(run(len(tasks), began + due)))
        await asyncio.gather(*tasks)
        return len(tasks)

    num_requests = asyncio.run(run_all())
    failures = [error for error in errors if not isinstance(error, QueueFullError)]
    return {
        "requests_per_s": rate,
        "requests": num_requests,
        "refused": len(errors) - len(failures),
        "failed": len(failures),
        "first_failure": repr(failures[0]) if failures else None,
        "first_audio_ms": percentiles([result.first_audio_ms for result in results]),
        "streams_with_underruns": sum(result.num_underruns > 0 for result in results),
    }


def percentiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        f"p{share}": round(ordered[min(len(ordered) - 1, len(ordered) * share // 100)], 2)
        for share in (50, 95, 99)
        if ordered
    }
