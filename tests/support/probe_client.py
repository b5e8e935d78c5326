"""A well-behaved client in a separate process that alternates speech and health requests.

    python -m tests.support.probe_client PORT

Prints `ready` when it is ready and runs until its stdin has a line. Then it prints a row per round:
the start (monotonic clock) and the milliseconds of the first audio byte and of the health request.
"""

from __future__ import annotations

import http.client
import json
import select
import sys
import time

SPEECH = json.dumps({"input": "Hello.", "response_format": "pcm"})
KIND = {"content-type": "application/json"}
LIMIT_S = 120.0


def first_byte_ms(connection: http.client.HTTPConnection) -> float:
    began = time.monotonic()
    connection.request("POST", "/v1/audio/speech", SPEECH, KIND)
    answer = connection.getresponse()
    assert answer.status == 200
    assert answer.read(1)
    took_ms = 1e3 * (time.monotonic() - began)
    answer.read()
    return took_ms


def health_ms(connection: http.client.HTTPConnection) -> float:
    began = time.monotonic()
    connection.request("GET", "/health/live")
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200
    return 1e3 * (time.monotonic() - began)


def main(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    first_byte_ms(connection)
    print("ready", flush=True)  # noqa: T201
    rounds = []
    while not select.select([sys.stdin], [], [], 0)[0]:
        rounds.append((time.monotonic(), first_byte_ms(connection), health_ms(connection)))
    print(json.dumps(rounds), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]))
