"""Timeouts for slow and stalled clients; other clients are not delayed."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.sync.client import connect

from tests.support.raw_http import LIMIT_S, read_all, talk
from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from tests.support.websocket_client import wait_until
from vivace.serve.http.response import TRANSPORT
from vivace.serve.settings import ServeSettings

# Long enough for a well-behaved client on a busy machine.
HEADERS_S, BODY_S, SEND_S = 1.5, 1.6, 1.0
SLACK_S = LIMIT_S  # on a busy machine; a control shows that connections are not closed earlier
HEAD = b"POST /v1/audio/speech HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def backend() -> ScriptedSpeech:
    return ScriptedSpeech(default=Plan(5), plans={7: Plan(20_000)})


@pytest.fixture(scope="module")
def server(backend: ScriptedSpeech, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = ServeSettings(
        port=0,
        voices=tmp_path_factory.mktemp("voices"),
        header_timeout_s=HEADERS_S,
        body_timeout_s=BODY_S,
        send_timeout_s=SEND_S,
        max_connections=150,
        max_text_chars=10_000,
    )
    with running(settings, backend.load) as server:
        yield server


def open_socket(server: Running, size: int | None = None) -> socket.socket:
    connection = socket.socket()
    if size is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
    connection.settimeout(LIMIT_S)
    connection.connect(("127.0.0.1", server.port))
    return connection


def send_slow(connection: socket.socket, content: bytes) -> bytes:
    """Send a byte every 50 ms until the server closes; return its response."""
    with connection:
        with contextlib.suppress(OSError):
            for number in range(len(content)):
                connection.sendall(content[number : number + 1])
                time.sleep(0.05)
        return read_all(connection)


def test_slow_headers_are_aborted_at_the_header_timeout(server: Running) -> None:
    """100 slow and silent clients; another client is served meanwhile."""
    began = time.monotonic()
    silent = [open_socket(server) for _ in range(80)]
    slow = [open_socket(server) for _ in range(20)]
    said: list[bytes] = []
    content = HEAD + b"X-Slow: " + b"x" * 2_000
    threads = [
        threading.Thread(target=lambda s=s: said.append(send_slow(s, content))) for s in slow
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: is_answered(server, "/health/live"))
    for connection in silent:
        said.append(read_all(connection))
        connection.close()
    for thread in threads:
        thread.join(LIMIT_S)
    assert HEADERS_S * 0.5 < time.monotonic() - began < HEADERS_S + SLACK_S
    assert len(said) == 100
    assert sum(b"408" in answer[:12] for answer in said) >= 80  # other connections were reset
    assert b"request_timeout" in next(answer for answer in said if answer)


def test_missing_body_is_aborted_at_the_body_timeout(server: Running) -> None:
    for head in (b"Content-Length: 100\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n5\r\n{"):
        began = time.monotonic()
        answer = talk(server.port, HEAD + head)
        assert answer.startswith(b"HTTP/1.1 408")
        assert BODY_S * 0.5 < time.monotonic() - began < BODY_S + SLACK_S


def test_stalled_request_is_aborted_before_the_body_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The body is shorter than its length. A client that has sent nothing has the whole timeout."""
    monkeypatch.setattr("vivace.serve.http.http_protocol.STALL_TIMEOUT_S", 0.5)
    long = 10 * LIMIT_S
    settings = ServeSettings(port=0, voices=tmp_path, header_timeout_s=long, body_timeout_s=long)
    with running(settings, ScriptedSpeech().load) as server, open_socket(server) as silent:
        for rest in (b"Content-Length: 9\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n5\r\n{"):
            assert talk(server.port, HEAD + rest).startswith(b"HTTP/1.1 408")
        assert talk(server.port, HEAD).startswith(b"HTTP/1.1 408")
        silent.sendall(b"GET /v1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert read_all(silent).startswith(b"HTTP/1.1 200")


def test_slow_body_is_aborted_at_the_body_timeout(server: Running) -> None:
    with open_socket(server) as connection:
        connection.sendall(HEAD + b"Content-Length: 5000\r\n\r\n")
        began = time.monotonic()
        send_slow(connection, b'{"input": "' + b"a" * 4_000)
        assert time.monotonic() - began < BODY_S + SLACK_S


def test_idle_connection_outlives_the_header_timeout(server: Running) -> None:
    """Control: a complete request is not aborted, and the next request has its own timeout."""
    request = b"GET /v1/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with open_socket(server) as connection:
        for _ in range(2):
            connection.sendall(request)
            time.sleep(1.2 * HEADERS_S)
            answer = b""
            while b"vivace" not in answer:  # headers and body arrive separately
                part = connection.recv(65_536)
                assert part, answer
                answer += part
            assert answer.startswith(b"HTTP/1.1 200")
        connection.sendall(request[:10])  # a stalled next request is aborted too
        assert b"408" in read_all(connection)[:12]


def test_client_that_reads_nothing_is_aborted_and_frees_its_slot(
    server: Running, backend: ScriptedSpeech
) -> None:
    body = b'{"input": "Hello.", "seed": 7, "max_new_tokens": 20000, "response_format": "pcm"}'
    stalled, num_before = [], backend.num_admitted
    for _ in range(4):
        connection = open_socket(server, 4_096)
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        stalled.append(connection)
    wait_until(lambda: backend.num_admitted == num_before + 4)
    began = time.monotonic()
    wait_until(lambda: is_spoken(server))
    wait_until(lambda: server.context.streams.num_active == 0)
    wait_until(lambda: not backend.active_slots)
    assert time.monotonic() - began < SEND_S + SLACK_S
    for connection in stalled:
        connection.close()


def test_at_most_one_chunk_is_buffered_beyond_the_kernel(
    tmp_path: Path,
) -> None:
    backend = ScriptedSpeech(plans={7: Plan(20_000)})
    settings = ServeSettings(port=0, voices=tmp_path, drain_timeout_s=0.1)
    body = b'{"input": "Hello.", "seed": 7, "max_new_tokens": 20000, "response_format": "pcm"}'
    with running(settings, backend.load) as server, open_socket(server, 4_096) as connection:
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        wait_until(lambda: any(one.flow and one.flow.write_paused for one in connections(server)))
        (unread,) = connections(server)
        assert unread.transport.get_write_buffer_size() < 9 * 1_920 * 2


def connections(server: Running) -> list[Any]:
    return list(server.server._uvicorn.server_state.connections)


async def echo(websocket: WebSocket) -> None:
    await websocket.accept()
    with contextlib.suppress(WebSocketDisconnect):
        while True:
            await websocket.send_text(await websocket.receive_text())


def test_websocket_outlives_the_request_timeouts(server: Running) -> None:
    server.server.app.router.routes.append(WebSocketRoute("/echo", echo))
    with connect(f"{server.url.replace('http', 'ws')}/echo", proxy=None) as opened:
        for _ in range(2):
            time.sleep(1.1 * max(HEADERS_S, BODY_S))
            opened.send("still here")
            assert opened.recv(timeout=LIMIT_S) == "still here"


def test_health_is_served_beyond_the_connection_limit(tmp_path: Path) -> None:
    """Timeouts are long, so that all connections stay open while others are refused."""
    limits = {"header_timeout_s": 10 * LIMIT_S, "max_connections": 20}
    settings = ServeSettings(port=0, voices=tmp_path, **limits)  # type: ignore[arg-type]
    with running(settings, ScriptedSpeech().load) as server, contextlib.ExitStack() as stack:
        opened = [stack.enter_context(open_socket(server)) for _ in range(20)]
        answer = httpx.get(f"{server.url}/v1/models", timeout=LIMIT_S)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "crowded")
        assert answer.headers["retry-after"]
        assert is_answered(server, "/health/live")
        for connection in opened:
            connection.close()
        wait_until(lambda: is_answered(server, "/v1/models"))


def is_spoken(server: Running) -> bool:
    """Speech of another client. On a busy machine that client may itself be too slow once."""
    answer = httpx.post(f"{server.url}/v1/audio/speech", json={"input": "Hello."}, timeout=LIMIT_S)
    assert answer.status_code in (200, 408)
    return answer.status_code == 200


def is_answered(server: Running, path: str) -> bool:
    return httpx.get(f"{server.url}{path}", timeout=LIMIT_S).status_code == 200


async def report_nodelay(request: Request) -> Response:
    connection = request.scope["state"][TRANSPORT].get_extra_info("socket")
    return JSONResponse(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))


def test_connections_disable_nagles_algorithm(server: Running) -> None:
    """Nagle's algorithm would delay the body by 40 ms, until the headers are acknowledged."""
    server.server.app.router.routes.append(Route("/nodelay", report_nodelay))
    assert httpx.get(f"{server.url}/nodelay").json() == 1
