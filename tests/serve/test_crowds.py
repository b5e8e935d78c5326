"""Queues that stay full, many connections of one address, and what an error names."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from tests.support.raw_http import talk
from tests.support.scripted_tts import ScriptedSpeech
from tests.support.serving import Running, running
from tests.support.websocket_client import OMNI
from vivace.errors import RequestError
from vivace.serve.pulse import FULL_TICKS, MOSTLY, Fullness
from vivace.serve.settings import ServeSettings

LIMIT_S = 60.0
PER_ADDRESS = 5
SPEECH = {"input": "Hello.", "voice": "alloy", "response_format": "pcm"}


@pytest.fixture(scope="module")
def backend() -> ScriptedSpeech:
    return ScriptedSpeech(max_streams=1, max_queue=0)


@pytest.fixture(scope="module")
def server(backend: ScriptedSpeech, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = ServeSettings(
        port=0,
        wyoming_port=0,
        voices=tmp_path_factory.mktemp("voices"),
        full_timeout_s=0.2,
        max_connections_per_address=PER_ADDRESS,
        max_queue=0,
    )
    with running(settings, backend.load) as opened:
        yield opened


def speak(url: str, **fields: object) -> httpx.Response:
    return httpx.post(f"{url}/v1/audio/speech", json=SPEECH | fields, timeout=LIMIT_S)


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- a queue that stays full ------------------------------------------------------------------


def test_full_for_long_is_at_most_of_the_last_looks() -> None:
    fullness = Fullness()
    assert not any(fullness.has_lasted(True) for _ in range(MOSTLY - 1))
    assert fullness.has_lasted(True)
    assert fullness.has_lasted(False)  # a slot was free for a moment
    assert fullness.has_lasted(True)


def test_room_now_and_then_is_no_full_queue() -> None:
    fullness = Fullness()
    seen = [fullness.has_lasted(tick % 4 != 0) for tick in range(10 * FULL_TICKS)]
    assert not any(seen)


def test_three_looks_with_room_end_it() -> None:
    fullness = Fullness()
    for _ in range(FULL_TICKS):
        fullness.has_lasted(True)
    assert [fullness.has_lasted(False) for _ in range(3)] == [True, True, False]


def test_a_server_that_stays_full_is_not_ready_until_there_is_room(
    server: Running, backend: ScriptedSpeech
) -> None:
    def status() -> tuple[int, str]:
        answer = httpx.get(f"{server.url}/health/ready", timeout=LIMIT_S)
        return answer.status_code, answer.json()["status"]

    backend.is_open.clear()
    speaking = threading.Thread(target=speak, args=(server.url,))
    speaking.start()
    try:
        wait_until(lambda: status() == (503, "full"))
        assert httpx.get(f"{server.url}/health/live").status_code == 200
        assert "vivace_queue_full 1" in httpx.get(f"{server.url}/metrics").text
    finally:
        backend.is_open.set()
        speaking.join(LIMIT_S)
    wait_until(lambda: status() == (200, "ready"))


def test_neither_limit_has_to_be_there() -> None:
    settings = ServeSettings(full_timeout_s=0.0, turn_timeout_s=0.0)
    assert (settings.full_timeout_s, settings.turn_timeout_s) == (0.0, 0.0)
    with pytest.raises(RequestError, match="max_connections_per_address"):
        ServeSettings(max_connections_per_address=0)


# --- connections of one address ---------------------------------------------------------------


def ask(server: Running, path: str, source: str) -> bytes:
    """From an address of one's own: all of 127/8 is this machine."""
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port), LIMIT_S, (source, 0)) as opened:
        opened.sendall(request)
        answer = b""
        while part := opened.recv(65_536):
            answer += part
    return answer


def test_one_address_may_have_so_many_connections_and_leaves_room_for_others(
    server: Running,
) -> None:
    where = ("127.0.0.1", server.port)
    crowd = [socket.create_connection(where, LIMIT_S, ("127.0.0.2", 0)) for _ in range(PER_ADDRESS)]
    try:
        refused = ask(server, "/v1/models", "127.0.0.2")
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"crowded" in refused
        assert ask(server, "/health/live", "127.0.0.2").startswith(b"HTTP/1.1 200 ")
        assert ask(server, "/v1/models", "127.0.0.3").startswith(b"HTTP/1.1 200 ")
    finally:
        for one in crowd:
            one.close()
    wait_until(lambda: ask(server, "/v1/models", "127.0.0.2").startswith(b"HTTP/1.1 200 "))


def test_a_websocket_is_a_connection_of_its_address_until_it_has_left(server: Running) -> None:
    where = ("127.0.0.1", server.port)
    crowd = [socket.create_connection(where, LIMIT_S, ("127.0.0.6", 0)) for _ in range(PER_ADDRESS)]
    with contextlib.ExitStack() as stack:
        for one in crowd:
            stack.enter_context(connect(f"ws://localhost{OMNI}", sock=one))
        refused = ask(server, "/v1/models", "127.0.0.6")
        assert refused.startswith(b"HTTP/1.1 503 ")
    wait_until(lambda: ask(server, "/v1/models", "127.0.0.6").startswith(b"HTTP/1.1 200 "))
    wait_until(lambda: "127.0.0.6" not in num_open(server))


def num_open(server: Running) -> Counter[str]:
    counts: Counter[str] = server.server._config.http_protocol_class.num_open  # type: ignore[attr-defined]
    assert counts is server.server._config.ws_protocol_class.num_open  # type: ignore[union-attr]
    return counts


class Unscanned(set[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("a new connection looks through all others")


def test_a_new_connection_does_not_look_through_the_others(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = server.server._uvicorn.server_state
    monkeypatch.setattr(state, "connections", Unscanned())
    assert ask(server, "/health/live", "127.0.0.7").startswith(b"HTTP/1.1 200 ")
    wait_until(lambda: "127.0.0.7" not in num_open(server))


def test_so_many_connections_of_an_address_over_wyoming_too(server: Running) -> None:
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
            except ConnectionError:  # it was closed before it was read
                return False

    crowd = [socket.create_connection(where, LIMIT_S, ("127.0.0.4", 0)) for _ in range(PER_ADDRESS)]
    try:
        assert all(b"pong" in ping(one) for one in crowd)
        assert not is_served("127.0.0.4")
        assert is_served("127.0.0.5")
    finally:
        for one in crowd:
            one.close()
    wait_until(lambda: is_served("127.0.0.4"))


# --- what an error says -----------------------------------------------------------------------


@pytest.mark.parametrize("text", ["!!!", "[pause 99s] Hello.", "Привет.", "Hi" * 40_000])
def test_a_text_that_cannot_be_spoken_is_named_as_the_input(server: Running, text: str) -> None:
    answer = speak(server.url, input=text)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")


def test_another_fault_does_not_name_the_input(server: Running) -> None:
    error = speak(server.url, voice="nobody-of-that-name").json()["error"]
    assert error["param"] == "voice"


def test_a_refusal_of_our_own_has_a_reason_phrase(server: Running, tmp_path: Path) -> None:
    assert talk(server.port, b"no HTTP at all\r\n\r\n").startswith(b"HTTP/1.1 400 Bad Request\r\n")
    settings = ServeSettings(port=0, voices=tmp_path, header_timeout_s=0.1)
    with running(settings, ScriptedSpeech().load) as hasty:
        assert talk(hasty.port, b"GET / HTTP/1.1\r\n").startswith(b"HTTP/1.1 408 Request Timeout")
