"""A load generator in a separate process: requests at a rate, or with a fixed concurrency.

    python -m tests.support.load_client PORT BODY SECONDS (--rate PER_S | --at-once N)

Prints a list of outcomes. Times count from the planned start of a request, so that a slow accept
counts too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from typing import Any

Outcome = dict[str, Any]


async def ask(port: int, body: bytes, due: float) -> Outcome:
    await asyncio.sleep(max(0.0, due - time.perf_counter()))
    outcome: Outcome = {"status": 0, "num_bytes": 0, "retry": False, "due": due}
    writer: asyncio.StreamWriter | None = None
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = "POST /v1/audio/speech HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        outcome["status"] = int(answer.split(b" ", 2)[1])
        outcome["answered_s"] = time.perf_counter() - due
        outcome["retry"] = b"\r\nretry-after:" in answer and b"\r\nretry-after-ms:" in answer
        while outcome["status"] == 200 and (size := int(await reader.readline(), 16)):
            await reader.readexactly(size + 2)
            outcome["num_bytes"] += size
        outcome["ended"] = time.perf_counter()
    except (OSError, asyncio.IncompleteReadError, ValueError) as error:
        outcome["error"] = repr(error)
    finally:
        if writer is not None:
            writer.close()
    return outcome


async def at_a_rate(port: int, body: bytes, seconds: float, rate: float) -> list[Outcome]:
    """Poisson arrivals, independent of earlier requests."""
    chance, due, began = random.Random(7), 0.0, time.perf_counter() + 0.2
    asked = []
    while (due := due + chance.expovariate(rate)) < seconds:
        asked.append(asyncio.create_task(ask(port, body, began + due)))
    return list(await asyncio.gather(*asked))


async def at_concurrency(port: int, body: bytes, seconds: float, at_once: int) -> list[Outcome]:
    """Keep `at_once` requests in flight."""
    end, outcomes = time.perf_counter() + seconds, []

    async def send_next() -> None:
        while time.perf_counter() < end:
            outcomes.append(await ask(port, body, time.perf_counter()))

    await asyncio.gather(*(send_next() for _ in range(at_once)))
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("body", type=str.encode)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--at-once", type=int)
    arguments = parser.parse_args()
    work = (
        at_concurrency(arguments.port, arguments.body, arguments.seconds, arguments.at_once)
        if arguments.at_once
        else at_a_rate(arguments.port, arguments.body, arguments.seconds, arguments.rate)
    )
    print(json.dumps(asyncio.run(work)))  # noqa: T201


if __name__ == "__main__":
    main()
