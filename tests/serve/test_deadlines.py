"""Peers that trickle, stall or do not read are cut; nobody else waits for them."""

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
from vivace.serve.response import TRANSPORT
from vivace.serve.settings import ServeSettings

# Long enough for a well-behaved client on a busy machine, which must not run into them.
HEADERS_S, BODY_S, SEND_S = 1.5, 1.6, 1.0
SLACK_S = LIMIT_S  # of a busy machine; a control shows that nothing else closes connections earlier
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


def trickle(connection: socket.socket, content: bytes) -> bytes:
    """A byte every 50 ms until the server has had enough; what it said."""
    with connection:
        with contextlib.suppress(OSError):
            for number in range(len(content)):
                connection.sendall(content[number : number + 1])
                time.sleep(0.05)
        return read_all(connection)


def test_headers_that_trickle_are_cut(server: Running) -> None:
    """100 at once, among them silent ones; somebody else is served meanwhile."""
    began = time.monotonic()
    silent = [open_socket(server) for _ in range(80)]
    slow = [open_socket(server) for _ in range(20)]
    said: list[bytes] = []
    content = HEAD + b"X-Slow: " + b"x" * 2_000
    threads = [threading.Thread(target=lambda s=s: said.append(trickle(s, content))) for s in slow]
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
    assert sum(b"408" in answer[:12] for answer in said) >= 80  # the others were reset
    assert b"request_timeout" in next(answer for answer in said if answer)


def test_a_body_that_does_not_come_is_cut(server: Running) -> None:
    for head in (b"Content-Length: 100\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n5\r\n{"):
        began = time.monotonic()
        answer = talk(server.port, HEAD + head)
        assert answer.startswith(b"HTTP/1.1 408")
        assert BODY_S * 0.5 < time.monotonic() - began < BODY_S + SLACK_S


def test_a_request_that_stops_coming_is_cut_before_its_whole_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A length that is a lie; whoever has not begun yet has all of the time."""
    monkeypatch.setattr("vivace.serve.protocol.STALL_S", 0.5)
    long = 10 * LIMIT_S
    settings = ServeSettings(port=0, voices=tmp_path, header_timeout_s=long, body_timeout_s=long)
    with running(settings, ScriptedSpeech().load) as server, open_socket(server) as silent:
        for rest in (b"Content-Length: 9\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n5\r\n{"):
            assert talk(server.port, HEAD + rest).startswith(b"HTTP/1.1 408")
        assert talk(server.port, HEAD).startswith(b"HTTP/1.1 408")
        silent.sendall(b"GET /v1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert read_all(silent).startswith(b"HTTP/1.1 200")


def test_a_body_that_trickles_is_cut(server: Running) -> None:
    with open_socket(server) as connection:
        connection.sendall(HEAD + b"Content-Length: 5000\r\n\r\n")
        began = time.monotonic()
        trickle(connection, b'{"input": "' + b"a" * 4_000)
        assert time.monotonic() - began < BODY_S + SLACK_S


def test_a_connection_may_wait_between_requests_longer_than_headers_may(server: Running) -> None:
    """The control: what is complete is not cut, and the next request has its own time."""
    request = b"GET /v1/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with open_socket(server) as connection:
        for _ in range(2):
            connection.sendall(request)
            time.sleep(1.5 * HEADERS_S)
            answer = b""
            while b"vivace" not in answer:  # headers and body may come one after the other
                part = connection.recv(65_536)
                assert part, answer
                answer += part
            assert answer.startswith(b"HTTP/1.1 200")
        connection.sendall(request[:10])  # a next request that stalls is cut again
        assert b"408" in read_all(connection)[:12]


def test_a_reader_that_takes_nothing_is_cut_and_its_slot_is_free(
    server: Running, backend: ScriptedSpeech
) -> None:
    body = b'{"input": "Hello.", "seed": 7, "max_new_tokens": 20000, "response_format": "pcm"}'
    stalled = []
    for _ in range(4):
        connection = open_socket(server, 4_096)
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        stalled.append(connection)
    wait_until(lambda: server.context.streams.num_active == 4)
    began = time.monotonic()
    answer = httpx.post(f"{server.url}/v1/audio/speech", json={"input": "Hello."}, timeout=LIMIT_S)
    assert answer.status_code == 200
    wait_until(lambda: server.context.streams.num_active == 0)
    wait_until(lambda: not backend.lives)
    assert time.monotonic() - began < SEND_S + SLACK_S
    for connection in stalled:
        connection.close()


def test_no_more_than_a_chunk_waits_for_a_reader_besides_what_the_kernel_has(
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


def test_a_socket_outlives_the_deadlines_of_requests(server: Running) -> None:
    server.server.app.router.routes.append(WebSocketRoute("/echo", echo))
    with connect(f"{server.url.replace('http', 'ws')}/echo", proxy=None) as opened:
        for _ in range(2):
            time.sleep(1.2 * max(HEADERS_S, BODY_S))
            opened.send("still here")
            assert opened.recv(timeout=LIMIT_S) == "still here"


def test_too_many_connections_leave_health_answering(tmp_path: Path) -> None:
    """No connection times out here, so that all of them stay open while others are refused."""
    limits = {"header_timeout_s": 10 * LIMIT_S, "max_connections": 20}
    settings = ServeSettings(port=0, voices=tmp_path, **limits)  # type: ignore[arg-type]
    with running(settings, ScriptedSpeech().load) as server, contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(open_socket(server)) for _ in range(20)]
        answer = httpx.get(f"{server.url}/v1/models", timeout=LIMIT_S)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "crowded")
        assert answer.headers["retry-after"]
        assert is_answered(server, "/health/live")
        for connection in crowd:
            connection.close()
        wait_until(lambda: is_answered(server, "/v1/models"))


def is_answered(server: Running, path: str) -> bool:
    return httpx.get(f"{server.url}{path}", timeout=LIMIT_S).status_code == 200


def wait_until(is_so: object) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_so():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


async def tell_nodelay(request: Request) -> Response:
    connection = request.scope["state"][TRANSPORT].get_extra_info("socket")
    return JSONResponse(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))


def test_connections_do_not_collect_small_writes(server: Running) -> None:
    """Nagle's algorithm would hold a body back until the headers are acknowledged: 40 ms."""
    server.server.app.router.routes.append(Route("/nodelay", tell_nodelay))
    assert httpx.get(f"{server.url}/nodelay").json() == 1
