"""Measures many streams: throughput, live playback, and latency at a request rate.

One event loop reads all streams, as in the server. One thread per stream would mostly wait for the
GIL.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vivace.cli.bench.latency import TEXT, Subject
from vivace.errors import QueueFullError
from vivace.plan.replica import percentile

LIVE_FRAMES = (60, 190)  # shortest and longest utterance of a live client: 5 to 15 s
BUFFER_S = 0.5  # audio that a live client holds before it reads more
SETTLING_S = 1.0  # of playback, in which a live client's underruns are counted apart
RAMP_S = 5.0  # in which the live clients start


@dataclass(frozen=True, slots=True)
class ClientResult:
    """Measurements of one client."""

    first_audio_ms: float
    audio_s: float
    num_underruns: int  # chunks that arrived after all earlier audio had been played
    num_early: int = 0  # of them in the first `SETTLING_S` of playback


@dataclass(slots=True)
class Playback:
    """A client that plays audio in real time while it arrives. Times are of `perf_counter`."""

    began: float  # when the request was made
    started: float = 0.0  # when the first audio arrived
    played_until: float = 0.0
    audio_s: float = 0.0
    num_underruns: int = 0
    num_early: int = 0

    def receive(self, seconds: float, now: float) -> None:
        """Count a chunk of audio, and an underrun if all earlier audio has been played."""
        if not self.started:
            self.started = self.played_until = now
        elif seconds and now > self.played_until:
            self.num_underruns += 1
            self.num_early += now - self.started < SETTLING_S
            self.played_until = now
        self.played_until += seconds
        self.audio_s += seconds

    @property
    def result(self) -> ClientResult:
        first_ms = 1000 * (self.started - self.began) if self.started else 0.0
        return ClientResult(first_ms, self.audio_s, self.num_underruns, self.num_early)


async def run_client(
    subject: Subject,
    num_frames: int,
    seed: int,
    began: float | None = None,
    buffer_s: float | None = None,
) -> ClientResult:
    """Read a stream and count the underruns of a playback in real time.

    Latency is measured from `began`, so that the delay of a busy event loop is included. A client
    reads as fast as it can, or with `buffer_s` in real time.
    """
    playback = Playback(time.perf_counter() if began is None else began)
    async for chunk in subject.tts.astream(TEXT, seed=seed, **subject.length(num_frames)):
        now = time.perf_counter()
        playback.receive(len(chunk.samples) / chunk.sample_rate, now)
        if buffer_s is not None:
            await asyncio.sleep(max(0.0, playback.played_until - buffer_s - now))
    return playback.result


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


def measure_live(subject: Subject, num_streams: int, *, seconds: float) -> dict[str, Any]:
    """`num_streams` clients that play their streams in real time, one utterance after another."""
    results: list[ClientResult] = []
    generator = random.Random(7)

    async def run(client: int, until: float) -> None:
        await asyncio.sleep(generator.uniform(0, RAMP_S))
        for number in itertools.count():
            if time.perf_counter() >= until:
                return
            num_frames = generator.randint(*LIVE_FRAMES)
            seed = 1000 * client + number
            results.append(await run_client(subject, num_frames, seed, buffer_s=BUFFER_S))

    async def run_all() -> None:
        until = time.perf_counter() + RAMP_S + seconds
        await asyncio.gather(*(run(client, until) for client in range(num_streams)))

    asyncio.run(run_all())
    return summarise_live(results, num_streams, seconds)


def summarise_live(
    results: Sequence[ClientResult], num_streams: int, seconds: float
) -> dict[str, Any]:
    return {
        "live_streams": num_streams,
        "seconds": seconds,
        "utterances": len(results),
        "audio_s": round(sum(result.audio_s for result in results), 1),
        "first_audio_ms": percentiles([result.first_audio_ms for result in results]),
        "underruns": sum(result.num_underruns - result.num_early for result in results),
        "underruns_in_first_second": sum(result.num_early for result in results),
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
    return {f"p{each}": round(percentile(values, each), 2) for each in (50, 95, 99) if values}
