"""Clients that measure first audio and throughput: of an engine, over HTTP and over Wyoming.

`serve.py` and `served.py` use them. As a program, this file runs the clients of one round and
prints their `Run` as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

TEXT = "It was a bright cold day in April, and the clocks were striking thirteen."
BYTES_PER_SECOND = 48_000  # of 16-bit samples at 24 kHz


@dataclass(frozen=True)
class Run:
    """One round with a number of simultaneous streams."""

    first_ms: list[float]
    audio_s: float
    wall_s: float


def rounds(arguments: argparse.Namespace) -> range:
    """The rounds of a measurement. The first one is a warm-up."""
    return range(arguments.repeats + 1)


# -- the engine alone -----------------------------------------------------------------------------


def lengths(most: int, stream: int, num_rounds: int) -> list[int]:
    """Frames of each utterance of a client: constant, or 0.5 to 1.5 times `frames` for `steady`."""
    if num_rounds == 1:
        return [most]
    chance = random.Random(stream)
    return [chance.randint(most // 2, most * 3 // 2) for _ in range(num_rounds)]


async def speak_all(tts: Any, num_streams: int, num_rounds: int, options: dict[str, Any]) -> Run:
    async def run_client(stream: int) -> list[tuple[float, float]]:
        sizes = lengths(options["max_frames"], stream, num_rounds)
        return [await speak(tts, {**options, "max_frames": size}) for size in sizes]

    began = time.perf_counter()
    results = await asyncio.gather(*map(run_client, range(num_streams)))
    return as_run(results, time.perf_counter() - began)


def as_run(results: list[list[tuple[float, float]]], wall_s: float) -> Run:
    """Combine results. With several utterances per client, the first wait is not counted."""
    first_ms = [ms for one in results for ms, _ in one[min(1, len(one) - 1) :]]
    return Run(first_ms, sum(audio_s for one in results for _, audio_s in one), wall_s)


async def speak(tts: Any, options: dict[str, Any]) -> tuple[float, float]:
    began, first_ms, audio_s = time.perf_counter(), 0.0, 0.0
    async for chunk in tts.astream(TEXT, **options):
        first_ms = first_ms or 1000 * (time.perf_counter() - began)
        audio_s += len(chunk.samples) / chunk.sample_rate
    return first_ms, audio_s


# -- over HTTP and Wyoming ------------------------------------------------------------------------


def request_from_process(url: str, num_streams: int, num_rounds: int, body: dict[str, Any]) -> Run:
    sizes = [str(num_streams), str(num_rounds)]
    command = [sys.executable, __file__, url, *sizes, json.dumps(body)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Run(**json.loads(done.stdout))


async def request_all(url: str, num_streams: int, num_rounds: int, body: dict[str, Any]) -> Run:
    scheme, _, where = url.partition("://")
    host, _, port = where.rpartition(":")
    request = request_http if scheme == "http" else request_wyoming
    pairs = [await asyncio.open_connection(host, int(port)) for _ in range(num_streams)]

    async def run_client(stream: int) -> list[tuple[float, float]]:
        answers = []
        for size in lengths(body.get("max_new_tokens", 0), stream, num_rounds):
            sent = body | {"max_new_tokens": size} if scheme == "http" else body
            first_ms, num_bytes = await request(*pairs[stream], host, json.dumps(sent).encode())
            answers.append((first_ms, num_bytes / BYTES_PER_SECOND))
        pairs[stream][1].close()
        return answers

    began = time.perf_counter()
    results = await asyncio.gather(*map(run_client, range(num_streams)))
    return as_run(results, time.perf_counter() - began)


async def request_http(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    host: str,
    body: bytes,
    receive: Callable[[int], Awaitable[None]] | None = None,
) -> tuple[float, int]:
    """Milliseconds to the first byte of audio, and the number of bytes.

    `receive` is called with the number of bytes of each chunk.
    """
    head = (
        f"POST /v1/audio/speech HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    began, first_ms, total = time.perf_counter(), 0.0, 0
    writer.write(head.encode() + body)
    status = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0]
    if b" 200" not in status:
        raise SystemExit(f"the server returned {status.decode()}")
    while num_bytes := int(await reader.readline(), 16):
        await reader.readexactly(num_bytes + 2)
        first_ms = first_ms or 1000 * (time.perf_counter() - began)
        total += num_bytes
        if receive is not None:
            await receive(num_bytes)
    await reader.readline()  # the end of the last chunk
    return first_ms, total


async def request_wyoming(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, body: bytes
) -> tuple[float, int]:
    began, first_ms, total = time.perf_counter(), 0.0, 0
    writer.write(b'{"type": "synthesize", "data_length": %d}\n' % len(body) + body)
    while (event := json.loads(await reader.readline()))["type"] != "audio-stop":
        if event["type"] == "error":
            raise SystemExit("the server returned an error")
        num_bytes = event.get("payload_length", 0)
        await reader.readexactly(event.get("data_length", 0) + num_bytes)
        if num_bytes:
            first_ms = first_ms or 1000 * (time.perf_counter() - began)
            total += num_bytes
    return first_ms, total


def main() -> None:
    url, num_streams, num_rounds, body = sys.argv[1:]
    run = asyncio.run(request_all(url, int(num_streams), int(num_rounds), json.loads(body)))
    print(json.dumps(asdict(run)))


if __name__ == "__main__":
    main()
