"""G5: malformed HTTP gets a 4xx or is closed, never a 5xx and never no response.

The controls are servers that fail for a method or do not respond: the same check detects both.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from tests.support.figures import record
from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from vivace.serve.http.middleware import Middleware
from vivace.serve.settings import ServeSettings

ANSWER_S = 60.0  # generous; the goal's own limit in a run by hand
GOAL_S = 5.0
AFTER_S = 0.05  # wait for a second response
BODY = json.dumps({"input": "Hello there.", "voice": "alloy", "response_format": "pcm"}).encode()
PATHS = ("/v1/audio/speech", "/v1/models", "/v1/audio/voices", "/health/live", "/", "/v1/realtime")
METHODS = (
    "GET",
    "POST",
    "HEAD",
    "DELETE",
    "PUT",
    "OPTIONS",
    "PATCH",
    "TRACE",
    "CONNECT",
    "get",
    "",
)
NASTY = (
    *(b"\0", b"\r", b"\n", b"\r\n", b"\r\n\r\n", b" ", b"\t", b":", b",", b";", b"%00", b"%2e%2e/"),
    *(
        b"\xff",
        b"\x80",
        b"../",
        b"//",
        b"?",
        b"#",
        b"{",
        b"}",
        b"[",
        b'"',
        b"\\",
        b"0",
        b"-1",
        b"9",
    ),
    *(
        b"HTTP/2.0",
        b"HTTP/1.0",
        b"99999999999999999999",
        b"chunked",
        b"gzip",
        b"close",
        b"A" * 9_000,
    ),
)
HEADERS = (
    *(
        b"Content-Length: 5",
        b"Content-Length: -1",
        b"Content-Length: 99999999",
        b"Content-Length: x",
    ),
    *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip", b"Expect: 100-continue"),
    *(b"Host: a", b"Host:", b"Connection: upgrade", b"Upgrade: websocket", b"Upgrade: h2c"),
    *(b"Content-Type: text/plain", b"Content-Type:", b"Origin: null", b"Range: bytes=0-"),
    *(
        b"Authorization: Bearer \xff",
        b"X-Request-Id: a b",
        b"Accept-Encoding: gzip;q=9",
        b" folded",
    ),
    *(b"Sec-WebSocket-Key: x", b"Sec-WebSocket-Version: 99", b"X-Long: " + b"y" * 40_000),
)
STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")


def make_request(chance: random.Random) -> bytes:
    """Return a valid request with a few changes, or two such requests in a row."""
    method, path = chance.choice((*METHODS, "POST", "POST", "GET")), chance.choice(PATHS)
    headers = [b"Host: 127.0.0.1", b"Content-Type: application/json"]
    if chance.random() < 0.7:
        headers.append(b"Content-Length: %d" % len(BODY))
    headers += chance.sample(HEADERS, chance.randrange(3))
    chance.shuffle(headers)
    request = f"{method} {path} HTTP/1.1\r\n".encode() + b"\r\n".join(headers) + b"\r\n\r\n" + BODY
    for _ in range(chance.randrange(4)):
        request = damage(request, chance)
    return request if chance.random() < 0.9 else request + make_request(chance)


def damage(request: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(request) + 1)
    kind = chance.randrange(4)
    if kind == 0:
        return request[:at] + chance.choice(NASTY) + request[at:]
    if kind == 1:
        return request[:at] + request[at + chance.randrange(1, 20) :]
    if kind == 2:
        return request[:at]
    other = bytes([chance.randrange(256)])
    return request[:at] + other + request[at + 1 :]


def send(port: int, request: bytes, limit_s: float) -> list[int]:
    """Return the statuses of the responses; 0 for a connection without response or close."""
    with socket.create_connection(("127.0.0.1", port), limit_s) as connection:
        answer = b""
        with contextlib.suppress(ConnectionError):
            connection.sendall(request)
        with contextlib.suppress(ConnectionError):
            try:
                while part := connection.recv(65_536):
                    answer += part
                    connection.settimeout(AFTER_S)
            except TimeoutError:
                if not answer:
                    return [0]
    return [int(status) for status in STATUS.findall(answer)]


def attack(server: Running, num_requests: int, limit_s: float = ANSWER_S) -> Counter[int]:
    chance = random.Random(11)
    requests = [make_request(chance) for _ in range(num_requests)]
    with ThreadPoolExecutor(16) as pool:
        answers = pool.map(lambda request: send(server.port, request, limit_s), requests)
    return Counter(status for statuses in answers for status in statuses)


def bad(statuses: Counter[int]) -> int:
    return sum(count for status, count in statuses.items() if status == 0 or status >= 500)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = ServeSettings(
        port=0,
        voices=tmp_path_factory.mktemp("voices"),
        header_timeout_s=1.0,  # for incomplete requests
        body_timeout_s=1.0,
    )
    with running(settings, ScriptedSpeech(default=Plan(2)).load) as server:
        yield server


@pytest.mark.parametrize(
    "num_requests", [150, pytest.param(5_000, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_malformed_http_is_refused(server: Running, num_requests: int) -> None:
    statuses = attack(server, num_requests, ANSWER_S if num_requests < 1_000 else GOAL_S)
    if num_requests >= 1_000:
        counts = {f"status_{status}": count for status, count in sorted(statuses.items())}
        record("G5 raw HTTP", requests=num_requests, failures=bad(statuses), **counts)
    assert bad(statuses) == 0, statuses
    assert statuses[200] > 5  # some requests stay valid
    assert statuses[400] > num_requests / 10
    body = {"input": "Hello.", "voice": "alloy"}
    assert httpx.post(f"{server.url}/v1/audio/speech", json=body).status_code == 200


# -- the controls --------------------------------------------------------------------------------


async def fail(middleware: Middleware, scope: Scope, receive: Receive, send: Send) -> None:
    assert scope.get("method") in ("GET", "POST"), "nobody sends that"
    await call_middleware(middleware, scope, receive, send)


async def hang(middleware: Middleware, scope: Scope, receive: Receive, send: Send) -> None:
    while scope.get("method") == "DELETE" and (await receive())["type"] != "http.disconnect":
        pass
    await call_middleware(middleware, scope, receive, send)


call_middleware = Middleware.__call__


@pytest.mark.parametrize(("broken", "status"), [(fail, 500), (hang, 0)])
def test_control_server_that_fails_or_hangs_is_detected(
    server: Running, monkeypatch: pytest.MonkeyPatch, broken: object, status: int
) -> None:
    monkeypatch.setattr(Middleware, "__call__", broken)
    assert attack(server, 100, limit_s=2.0)[status] > 0
