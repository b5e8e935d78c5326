"""Request framing: two lengths, content codings and half-closed connections."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import httpx
import pytest

from tests.support.raw_http import LIMIT_S, read_all, talk
from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from tests.support.websocket_client import wait_until
from vivace.serve.http import half_close
from vivace.serve.settings import ServeSettings

SPEECH = {"input": "Hello.", "response_format": "pcm"}
NUM_FRAMES = 3
NUM_BYTES = NUM_FRAMES * 1_920 * 2
PING = b"GET /v1/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
CHUNKED = b"5\r\n{   }\r\n0\r\n\r\n"


@pytest.fixture(scope="module")
def backend() -> ScriptedSpeech:
    return ScriptedSpeech(default=Plan(NUM_FRAMES), plans={1: Plan(100_000)})


@pytest.fixture(scope="module")
def server(backend: ScriptedSpeech, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    voices = tmp_path_factory.mktemp("voices")
    with running(ServeSettings(port=0, voices=voices), backend.load) as server:
        yield server


def post(fields: Mapping[str, object], *headers: bytes, version: bytes = b"1.1") -> bytes:
    content = json.dumps(fields).encode()
    lines = [
        b"POST /v1/audio/speech HTTP/" + version,
        b"Host: 127.0.0.1",
        b"Content-Type: application/json",
        b"Content-Length: %d" % len(content),
        *headers,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + content


def dechunk(body: bytes) -> bytes:
    """Return the content of a complete chunked body."""
    content = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        if int(size, 16) == 0:
            return content
        content, body = content + body[: int(size, 16)], body[int(size, 16) + 2 :]


# -- two lengths ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 18\r\ntransfer-encoding: Chunked\r\n",
    ],
)
def test_request_with_two_lengths_is_refused_and_its_connection_closed(
    server: Running, headers: bytes
) -> None:
    """The bytes after it, which a proxy may have taken for a body, are not served as a request."""
    head = b"POST /v1/audio/speech HTTP/1.1\r\nHost: 127.0.0.1\r\n" + headers
    answer = talk(server.port, head + b"\r\n" + CHUNKED + PING)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"connection: close" in answer.lower()
    assert answer.count(b"HTTP/1.1") == 1


def test_chunked_request_of_http_1_0_is_refused_and_its_connection_closed(server: Running) -> None:
    head = b"POST /v1/audio/speech HTTP/1.0\r\nHost: 127.0.0.1\r\nConnection: keep-alive\r\n"
    answer = talk(server.port, head + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKED + PING)
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    "headers",
    [b"Content-Length: 99999999\r\n", b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n"],
)
@pytest.mark.parametrize("rest", [b"", b"ZZ\r\n"])
def test_request_that_is_refused_before_its_body_gets_one_response(
    server: Running, headers: bytes, rest: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The body does not arrive, or is not valid. The connection is closed without another error."""
    monkeypatch.setattr("vivace.serve.http.http_protocol.STALL_TIMEOUT_S", 0.2)
    head = b"POST /v1/audio/speech HTTP/1.1\r\nHost: 127.0.0.1\r\n" + headers + b"\r\n"
    with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as connection:
        connection.sendall(head)
        answer = connection.recv(65_536)
        connection.sendall(rest)
        answer += read_all(connection)
    assert answer[:12] in (b"HTTP/1.1 413", b"HTTP/1.1 415")
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("length", [b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n"])
def test_request_with_one_length_keeps_its_connection(server: Running, length: bytes) -> None:
    """Control: the next request on the connection is served."""
    body = CHUNKED if b"chunked" in length else b"{   }"
    head = (
        b"POST /v1/audio/speech HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    )
    last = PING.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    answer = talk(server.port, head + length + b"\r\n" + body + last)
    assert answer.count(b"HTTP/1.1") == 2
    assert b"HTTP/1.1 200" in answer


# -- targets that are whole URLs -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (b"http://127.0.0.1/health", b"200"),
        (b"HTTPS://127.0.0.1:8000/v1/audio/voices?limit=1", b"200"),
        (b"http://127.0.0.1?a=1/2", b"200"),  # the page
        (b"http://127.0.0.1/nothing", b"404"),
        (b"http://other.example/health", b"403"),  # the host of the URL is checked
        (b"http:///health", b"400"),
        (b"http://", b"400"),
    ],
)
def test_target_may_be_a_url(server: Running, target: bytes, status: bytes) -> None:
    head = b"GET " + target + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    assert talk(server.port, head).startswith(b"HTTP/1.1 " + status)


# -- content codings -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "coding", ["gzip", "x-gzip", "deflate", "br", "zstd", "GZIP", "identity, gzip"]
)
@pytest.mark.parametrize(
    "path", ["/v1/audio/speech", "/v1/audio/voices", "/v1/text-to-speech/alloy"]
)
def test_body_with_a_content_coding_is_415(client: httpx.Client, path: str, coding: str) -> None:
    answer = client.post(path, json=SPEECH, headers={"content-encoding": coding})
    assert answer.status_code == 415
    assert answer.json()["error"]["code"] == "unsupported_encoding"
    assert answer.headers["accept-encoding"] == "identity"


def test_body_with_two_content_coding_headers_is_415(client: httpx.Client) -> None:
    headers = [("content-encoding", "gzip"), ("content-encoding", "identity")]
    assert client.post("/v1/audio/speech", json=SPEECH, headers=headers).status_code == 415


@pytest.mark.parametrize("coding", ["identity", "Identity", ""])
def test_body_without_a_content_coding_is_read(client: httpx.Client, coding: str) -> None:
    answer = client.post("/v1/audio/speech", json=SPEECH, headers={"content-encoding": coding})
    assert answer.status_code == 200


# -- half-close ----------------------------------------------------------------------------------


@contextmanager
def half_closed(server: Running, request: bytes) -> Iterator[socket.socket]:
    """Return a connection that sent a request and shut down its write side."""
    with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        yield connection


@pytest.mark.parametrize("header", [b"Connection: close", b"Connection: keep-alive"])
@pytest.mark.parametrize("stream", [True, False])
def test_post_before_a_half_close_is_answered_whole(
    server: Running, header: bytes, stream: bool
) -> None:
    with half_closed(server, post({**SPEECH, "stream": stream}, header)) as connection:
        head, _, body = read_all(connection).partition(b"\r\n\r\n")
    assert b"HTTP/1.1 200" in head
    assert len(dechunk(body) if stream else body) == NUM_BYTES


def test_post_of_http_1_0_before_a_half_close_is_answered(server: Running) -> None:
    with half_closed(server, post(SPEECH, version=b"1.0")) as connection:
        _, _, body = read_all(connection).partition(b"\r\n\r\n")
    assert len(body) == NUM_BYTES


def test_pipelined_requests_before_a_half_close_are_all_answered(server: Running) -> None:
    with half_closed(server, post(SPEECH) + PING * 2) as connection:
        answers = read_all(connection)
    assert answers.count(b"HTTP/1.1 200") == 3


def test_bad_request_before_a_half_close_gets_its_error(server: Running) -> None:
    with half_closed(server, post({"input": ""})) as connection:
        assert b"HTTP/1.1 400" in read_all(connection)


def test_incomplete_request_before_a_half_close_is_closed(server: Running) -> None:
    for request in (b"", PING[:20], post(SPEECH)[:-3]):
        with half_closed(server, request) as connection:
            assert b"HTTP/1.1 200" not in read_all(connection)


def test_slow_response_after_a_half_close_follows_one_interim_response(
    server: Running, backend: ScriptedSpeech, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half_close, "PROBE_AFTER_S", 0.0)
    monkeypatch.setattr(half_close, "POLL_S", 0.01)
    backend.is_open.clear()
    try:
        with half_closed(server, post(SPEECH)) as connection:
            interim = connection.recv(len(half_close.INTERIM))
            backend.is_open.set()
            answer = read_all(connection)
    finally:
        backend.is_open.set()
    assert interim == half_close.INTERIM
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("fields", [{}, {"stream": False}])
def test_client_that_closes_while_it_waits_frees_its_stream(
    server: Running, backend: ScriptedSpeech, fields: dict[str, object]
) -> None:
    """A full close looks like a half-close until the server sends bytes."""
    backend.is_open.clear()
    try:
        with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as connection:
            connection.sendall(post({**SPEECH, **fields}))
            wait_until(lambda: server.context.streams.num_active == 1)
        wait_until(lambda: server.context.streams.num_active == 0)
    finally:
        backend.is_open.set()


def test_client_that_closes_in_the_middle_frees_its_stream(
    server: Running, backend: ScriptedSpeech
) -> None:
    with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as connection:
        connection.sendall(post({**SPEECH, "seed": 1}))
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        connection.shutdown(socket.SHUT_WR)
    wait_until(lambda: server.context.streams.num_active == 0 and not backend.active_slots)
