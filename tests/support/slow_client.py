"""Slow clients in a separate process: they send headers or bodies slowly, or stop reading.

    python -m tests.support.slow_client PORT NUM_HEADERS NUM_BODIES NUM_READERS GIVE_UP_S

Prints `open` when all are connected, and at the end how long each connection lasted: `null` if the
server had not closed it after GIVE_UP_S. Stalled readers are observed at the server only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import sys
import time

TRICKLE_S = 0.25
ARRIVAL_S = 0.05  # between readers: 64 simultaneous starts are another test's load (G2)
HEAD = b"POST /v1/audio/speech HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
SPEECH = b'{"input": "Hello.", "seed": 7, "max_new_tokens": 1000000, "response_format": "pcm"}'


async def send_slowly(port: int, first: bytes) -> tuple[float, socket.socket]:
    connection = await connect(port)
    await asyncio.get_running_loop().sock_sendall(connection, first)
    return time.monotonic(), connection


async def connect(port: int, size: int | None = None) -> socket.socket:
    connection = socket.socket()
    connection.setblocking(False)
    if size is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    return connection


async def until_cut(
    began: float, connection: socket.socket, give_up_s: float, wait_s: float
) -> float | None:
    """Send a byte every `TRICKLE_S` and read all responses until the server closes."""
    loop, left = asyncio.get_running_loop(), asyncio.Event()

    async def send() -> None:
        with contextlib.suppress(OSError):
            await asyncio.sleep(wait_s)
            while True:
                await asyncio.sleep(TRICKLE_S)
                await loop.sock_sendall(connection, b"x")

    async def read() -> None:
        with contextlib.suppress(OSError):
            while await loop.sock_recv(connection, 65_536):
                pass
        left.set()

    tasks = [asyncio.create_task(send()), asyncio.create_task(read())]
    try:
        await asyncio.wait_for(left.wait(), began + give_up_s - time.monotonic())
        return time.monotonic() - began
    except asyncio.TimeoutError:
        return None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        connection.close()


async def main(
    port: int, num_headers: int, num_bodies: int, num_readers: int, give_up_s: float
) -> None:
    headers = [await send_slowly(port, HEAD + b"x-slow: ") for _ in range(num_headers)]
    body = HEAD + b"content-length: 5000\r\n\r\n{"
    bodies = [await send_slowly(port, body) for _ in range(num_bodies)]
    readers = [await connect(port, 4_096) for _ in range(num_readers)]
    for connection in readers:
        request = HEAD + b"content-length: %d\r\n\r\n%b" % (len(SPEECH), SPEECH)
        await asyncio.get_running_loop().sock_sendall(connection, request)
        await asyncio.sleep(ARRIVAL_S)
    print("open", flush=True)  # noqa: T201
    # Different phases: simultaneous sends would take a core from the server periodically.
    waits_s = [TRICKLE_S * n / (num_headers + num_bodies) for n in range(num_headers + num_bodies)]
    random.Random(7).shuffle(waits_s)
    slow = zip((*headers, *bodies), waits_s, strict=True)
    kept = await asyncio.gather(*(until_cut(*each, give_up_s, wait_s) for each, wait_s in slow))
    print(json.dumps({"headers": kept[:num_headers], "bodies": kept[num_headers:]}), flush=True)  # noqa: T201
    sys.stdin.readline()  # readers stay until stdin has a line


if __name__ == "__main__":
    port, headers, bodies, readers = map(int, sys.argv[1:5])
    asyncio.run(main(port, headers, bodies, readers, give_up_s=float(sys.argv[5])))
