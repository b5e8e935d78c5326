"""Limits on the connections of one address."""

from __future__ import annotations

import contextlib
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.support.scripted_tts import ScriptedSpeech
from tests.support.serving import Running, running
from tests.support.websocket_client import OMNI, wait_until
from vivace.serve.settings import ServeSettings

LIMIT_S = 60.0
PER_ADDRESS = 5


@pytest.fixture(scope="module")
def backend() -> ScriptedSpeech:
    return ScriptedSpeech()


@pytest.fixture(scope="module")
def server(backend: ScriptedSpeech, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = ServeSettings(
        port=0,
        wyoming_port=0,
        voices=tmp_path_factory.mktemp("voices"),
        max_connections_per_address=PER_ADDRESS,
    )
    with running(settings, backend.load) as opened:
        yield opened


def ask(server: Running, path: str, source: str) -> bytes:
    """Send a request from the address `source`, any of 127.0.0.0/8."""
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port), LIMIT_S, (source, 0)) as opened:
        opened.sendall(request)
        answer = b""
        while part := opened.recv(65_536):
            answer += part
    return answer


def test_address_at_its_connection_limit_is_refused_and_others_are_served(
    server: Running,
) -> None:
    where = ("127.0.0.1", server.port)
    opened = [
        socket.create_connection(where, LIMIT_S, ("127.0.0.2", 0)) for _ in range(PER_ADDRESS)
    ]
    try:
        refused = ask(server, "/v1/models", "127.0.0.2")
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"crowded" in refused
        assert ask(server, "/health/live", "127.0.0.2").startswith(b"HTTP/1.1 200 ")
        assert ask(server, "/v1/models", "127.0.0.3").startswith(b"HTTP/1.1 200 ")
    finally:
        for one in opened:
            one.close()
    wait_until(lambda: ask(server, "/v1/models", "127.0.0.2").startswith(b"HTTP/1.1 200 "))


def test_websocket_counts_as_a_connection_until_it_closes(server: Running) -> None:
    where = ("127.0.0.1", server.port)
    opened = [
        socket.create_connection(where, LIMIT_S, ("127.0.0.6", 0)) for _ in range(PER_ADDRESS)
    ]
    with contextlib.ExitStack() as stack:
        for one in opened:
            stack.enter_context(connect(f"ws://localhost{OMNI}", sock=one))
        refused = ask(server, "/v1/models", "127.0.0.6")
        assert refused.startswith(b"HTTP/1.1 503 ")
    wait_until(lambda: ask(server, "/v1/models", "127.0.0.6").startswith(b"HTTP/1.1 200 "))
    wait_until(lambda: "127.0.0.6" not in num_open(server))


def num_open(server: Running) -> Counter[str]:
    counts: Counter[str] = server.server._config.http_protocol_class.num_open  # type: ignore[attr-defined]
    assert counts is server.server._config.ws_protocol_class.num_open  # type: ignore[union-attr]
    return counts


class NotIterable(set[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("a new connection iterates over all others")


def test_new_connection_does_not_iterate_over_the_others(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = server.server._uvicorn.server_state
    monkeypatch.setattr(state, "connections", NotIterable())
    assert ask(server, "/health/live", "127.0.0.7").startswith(b"HTTP/1.1 200 ")
    wait_until(lambda: "127.0.0.7" not in num_open(server))


def test_wyoming_connections_of_one_address_are_limited(server: Running) -> None:
    assert server.server.wyoming_url is not None
    where = ("127.0.0.1", int(server.server.wyoming_url.rpartition(":")[2]))

    def ping(opened: socket.socket) -> bytes:
        opened.sendall(b'{"type": "ping"}\n')
        answer = b""
        while b"\n" not in answer and (part := opened.recv(65_536)):
            answer += part
        return answer

    def is_served(source: str) -> bool:
        with socket.create_connection(where, LIMIT_S, (source, 0)) as opened:
            try:
                return b"pong" in ping(opened)
            except ConnectionError:  # closed by the server
                return False

    opened = [
        socket.create_connection(where, LIMIT_S, ("127.0.0.4", 0)) for _ in range(PER_ADDRESS)
    ]
    try:
        assert all(b"pong" in ping(one) for one in opened)
        assert not is_served("127.0.0.4")
        assert is_served("127.0.0.5")
    finally:
        for one in opened:
            one.close()
    wait_until(lambda: is_served("127.0.0.4"))
