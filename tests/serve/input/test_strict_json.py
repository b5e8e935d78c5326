"""Ambiguous or invalid bodies return a 400, and the next request is served."""

from __future__ import annotations

import json
import socket
import time

import httpx
import pytest

from tests.support.raw_http import LIMIT_S, talk
from tests.support.serving import Running
from vivace.serve.errors import RefusedError
from vivace.serve.input.strict_json import parse_object

BAD = {
    "nothing": b"",
    "half": b'{"a": ',
    "a list": b"[]",
    "a text": b'"a"',
    "not UTF-8": b'{"a": "\xff"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "deep": b'{"a":' * 50 + b"1" + b"}" * 50,
    "very deep": b"[" * 2_000_000,
    "twice": b'{"input": "a", "input": "b"}',
    "twice within": b'{"voice": {"id": "a", "id": "b"}}',
    "NUL": b'{"input": "a\\u0000b"}',
    "NUL in a key": b'{"a\\u0000": 1}',
    "a lone surrogate": b'{"input": "\\ud800"}',
    "NaN": b'{"speed": NaN}',
    "infinite": b'{"speed": -Infinity}',
    "huge": b'{"speed": 1e999}',
    "digits": b'{"seed": 1' + b"0" * 5_000 + b"}",
    "trailing": b"{} {}",
    "comments": b"{} // yes",
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD.keys())
def test_invalid_json_object_is_refused(content: bytes) -> None:
    with pytest.raises(RefusedError) as refused:
        parse_object(content)
    assert refused.value.status == 400


@pytest.mark.parametrize("content", ["null", "[]", " [1, 2]\n", '"a"', "7"])
def test_error_of_json_that_is_no_object_shows_the_json(content: str) -> None:
    with pytest.raises(RefusedError) as refused:
        parse_object(content)
    assert str(refused.value) == f"the body must be a JSON object, not {content.strip()!r}"


@pytest.mark.parametrize("path", ["/v1/audio/voices", "/v1/audio/speech"])
def test_invalid_body_returns_400_and_the_next_request_is_served(
    client: httpx.Client, path: str
) -> None:
    for content in BAD.values():
        answer = client.post(path, content=content, headers={"content-type": "application/json"})
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"
    assert client.get("/v1/models").status_code == 200


def test_valid_body_is_parsed_unchanged() -> None:
    values = {
        "input": 'a "[[[{{{" \\ 日本 😀',
        "voice": {"id": "x"},
        "seed": 1,
        "speed": 1.5,
        "n": None,
    }
    assert parse_object(json.dumps(values)) == values
    assert parse_object(b"\xef\xbb\xbf" + json.dumps(values).encode()) == values
    assert parse_object('{"a": "' + '{"'[0] * 100 + '"}') == {"a": "{" * 100}


def test_check_of_a_long_text_takes_no_longer_than_parsing() -> None:
    """Linear time: a text of 15 times the length takes far less than 225 times as long."""
    texts = [json.dumps({"input": '["\\' * n}) for n in (4_000, 60_000)]

    def spent(text: str) -> float:
        began = time.process_time()
        parse_object(text)
        return time.process_time() - began

    short, long = (min(spent(text) for _ in range(3)) for text in texts)
    assert long < 75 * short


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "a/b;c"])
def test_body_of_another_content_type_is_refused(client: httpx.Client, kind: str) -> None:
    """Content types that browsers send without a preflight are refused."""
    answer = client.post("/v1/audio/voices", content=b"{}", headers={"content-type": kind})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "invalid_content_type")
    found = f"application/json, not '{kind.split(';')[0]}'" if kind else "it has none"
    assert error["message"].endswith(found)


# -- sizes, on the wire ----------------------------------------------------------------------

HEAD = b"POST /v1/audio/voices HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
HEAD += b"Connection: close\r\n"


def test_declared_length_beyond_the_limit_is_refused_early(server: Running) -> None:
    for length in (b"99999999", b"9" * 30):
        answer = talk(server.port, HEAD + b"Content-Length: " + length + b"\r\n\r\n")
        assert answer[:12] in (b"HTTP/1.1 413", b"HTTP/1.1 400")
    assert b"body_too_large" in talk(server.port, HEAD + b"Content-Length: 99999999\r\n\r\n")


def test_chunked_body_beyond_the_limit_is_refused(server: Running) -> None:
    chunk = b"100000\r\n" + b" " * 2**20 + b"\r\n"
    answer = talk(
        server.port, HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 15 + b"0\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 413")


def test_connection_after_a_refused_body_serves_the_next_request(server: Running) -> None:
    first = HEAD.replace(b"Connection: close\r\n", b"")
    first += b"Content-Length: %d\r\n\r\n" % (15 * 2**20) + b" " * (15 * 2**20)
    second = b"GET /v1/ HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    answers = talk(server.port, first + second)
    assert answers.startswith(b"HTTP/1.1 413")
    assert b"HTTP/1.1 200" in answers


@pytest.mark.parametrize(
    "lie",
    [
        b"Content-Length: -1\r\n\r\n",
        b"Content-Length: two\r\n\r\n{}",
        b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n{}\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n-1\r\n{}\r\n0\r\n\r\n",
        b"Transfer-Encoding: gzip\r\n\r\n{}",
        b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}xx\r\n0\r\n\r\n",
    ],
)
def test_wrong_content_length_returns_400_or_closes(
    server: Running, client: httpx.Client, lie: bytes
) -> None:
    answer = talk(server.port, HEAD + lie)
    assert answer == b"" or answer[:10] == b"HTTP/1.1 4"
    assert client.get("/v1/models").status_code == 200


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\r\n\r\n\0\xff\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\nConnection: close\r\n\r\nSM\r\n\r\n",
    ],
)
def test_invalid_http_returns_400(
    server: Running, client: httpx.Client, request_bytes: bytes
) -> None:
    answer = talk(server.port, request_bytes)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 431")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    assert b"x-request-id" in head
    assert client.get("/v1/models").status_code == 200


UPGRADE = b"Host: 127.0.0.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
KEY = b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"


@pytest.mark.parametrize(
    "handshake",
    [
        b"GET /v1/realtime HTTP/1.1\r\n" + UPGRADE + KEY + b"Content-Length: 2\r\n\r\n{}",
        b"POST /v1/realtime HTTP/1.1\r\n" + UPGRADE + KEY + b"Content-Length: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + UPGRADE + KEY + b"Transfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + UPGRADE + KEY + b"X: y\r\n" * 200 + b"\r\n",
        b"GET /v1/realtime HTTP/1.1\r\n" + UPGRADE + b"\r\n",
    ],
)
def test_invalid_websocket_handshake_is_refused(
    server: Running, client: httpx.Client, handshake: bytes
) -> None:
    answer = talk(server.port, handshake)
    assert answer[:10] == b"HTTP/1.1 4"
    assert client.get("/v1/models").status_code == 200


def test_disconnect_inside_a_body_logs_no_error(
    server: Running, client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as connection:
        connection.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        time.sleep(0.05)
    deadline = time.monotonic() + LIMIT_S
    while "/v1/audio/voices 499" not in caplog.text:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
