"""Measures how fast a busy server refuses requests: 48 simultaneous requests and one stream.

    PYTHONPATH=src python benchmarks/refusals.py --json benchmarks/results/refusals-cpu.json

`vivace serve` runs in one process with the embedded voice and one slot, which a client that reads a
long text holds. A second process opens 48 connections, sends one request on each at the same
moment, and measures the time from sending a request to the end of its response. `--flags` replaces
the server's limits. The report includes the system load before the run. On a loaded machine, run
`chrt -r 1 python benchmarks/refusals.py`: real-time priority takes the CPU for about 15 s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LONG_TEXT = "It was a bright cold day in April, and the clocks were striking thirteen. " * 400
FLAGS = "--max-streams 1 --max-wait 0.05"
NUM_REQUESTS = 48


def main() -> None:
    if sys.argv[1:2] == ["--client"]:
        print(json.dumps(asyncio.run(request_rounds(int(sys.argv[2]), *map(int, sys.argv[3:])))))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=NUM_REQUESTS)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--flags", default=FLAGS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with serving(arguments.flags.split()) as port:
        numbers = (port, arguments.requests, arguments.rounds)
        command = [sys.executable, __file__, "--client", *map(str, numbers)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    report = {"benchmark": "refusals", "flags": arguments.flags, "load_before": round(load, 2)}
    report |= {"is_realtime": os.sched_getscheduler(0) != os.SCHED_OTHER}
    report |= {"requests": arguments.requests, "rounds": arguments.rounds}
    report |= summarize(json.loads(done.stdout))
    print(json.dumps(report, indent=1))
    if arguments.json:
        from vivace.cli.bench.machine import machine

        text = json.dumps({**report, "machine": machine()}, indent=1)
        arguments.json.write_text(text + "\n", "utf-8")


def summarize(answers: list[tuple[int, float]]) -> dict[str, Any]:
    refused = sorted(1e3 * seconds for status, seconds in answers if status == 429)

    def share(part: float) -> float:
        return round(refused[min(len(refused) - 1, int(part * len(refused)))], 1)

    figures = {"p50_ms": share(0.5), "p95_ms": share(0.95), "max_ms": share(1.0)}
    return {"refused": len(refused), "answers": len(answers), **figures}


@contextmanager
def serving(flags: list[str]) -> Iterator[int]:
    command = [sys.executable, "-m", "vivace", "serve", "--port", "0", *flags]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        for line in server.stderr:
            if "ready: http" in line:
                break
        drain = subprocess.Popen(["cat"], stdin=server.stderr, stdout=subprocess.DEVNULL)
        yield int(line.rstrip("/\n").rpartition(":")[2])
    finally:
        for _ in range(2):  # the second ends the long stream
            server.terminate()
            time.sleep(0.5)
        server.wait(30)
        drain.wait(30)
        server.stderr.close()


# -- the client, in a process of its own ---------------------------------------------------------


async def request_rounds(port: int, num_requests: int, num_rounds: int) -> list[tuple[int, float]]:
    has_slot = asyncio.Event()
    holding = asyncio.create_task(hold_slot(port, has_slot))
    await asyncio.wait_for(has_slot.wait(), 60.0)
    answers = []
    for _ in range(num_rounds):
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(num_requests)]
        requests = [asyncio.create_task(request_speech(*each)) for each in opened]
        await asyncio.wait(requests, timeout=20.0)
        answers += [task.result() for task in requests if task.done()]
        for task in requests:
            task.cancel()
        await asyncio.sleep(0.5)
    assert not holding.done(), "the long stream ended: the slot was free"
    holding.cancel()
    return answers


async def request_speech(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> tuple[int, float]:
    body = json.dumps({"model": "tts-1", "voice": "alloy", "input": "Hello there."}).encode()
    began = time.perf_counter()
    writer.write(head(body) + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    status = int(answer.split(b" ", 2)[1])
    if status != 200:
        await reader.readexactly(int(answer.lower().split(b"content-length: ")[1].split()[0]))
    seconds = time.perf_counter() - began
    writer.close()
    return status, seconds


async def hold_slot(port: int, has_slot: asyncio.Event) -> None:
    """Read a long stream; `has_slot` is set at its first bytes."""
    body = json.dumps({"input": LONG_TEXT, "response_format": "pcm"}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head(body) + body)
    while await reader.read(65_536):
        has_slot.set()


def head(body: bytes) -> bytes:
    lines = ["POST /v1/audio/speech HTTP/1.1", "host: 127.0.0.1"]
    lines += ["content-type: application/json", f"content-length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode()


if __name__ == "__main__":
    main()
