"""Failures, full queues, disconnects and clients that do not read affect one stream only."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest

from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from vivace.prompt import Prompt
from vivace.serve.http.response import RESET, run_while_connected
from vivace.serve.settings import ServeSettings
from vivace.speech import SamplingParams

PATH = "/v1/audio/speech"
FAILS, REFUSED, LONG, ENDLESS = 11, 12, 13, 14  # seeds
TIMEOUT_S = 60.0  # on a busy machine


@contextmanager
def scripted(
    tmp_path: Path, backend: ScriptedSpeech, **settings: Any
) -> Iterator[tuple[Running, httpx.Client]]:
    backend.plans |= {
        FAILS: Plan(50, fails_at=20),
        REFUSED: Plan(is_refused=True),
        LONG: Plan(2_000),
        ENDLESS: Plan(1_000_000),
    }
    configured = ServeSettings(port=0, voices=tmp_path, max_queue=backend.max_queue, **settings)
    with (
        running(configured, backend.load) as server,
        httpx.Client(base_url=server.url, timeout=TIMEOUT_S, verify=False) as client,
    ):
        yield server, client


@dataclass(frozen=True)
class Served:
    server: Running
    client: httpx.Client
    backend: ScriptedSpeech


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    backend = ScriptedSpeech()
    with scripted(tmp_path_factory.mktemp("voices"), backend) as (server, client):
        yield Served(server, client, backend)


@pytest.fixture
def served(shared: Served) -> Iterator[Served]:
    """One server shared by all tests that change no setting."""
    yield shared
    shared.backend.step_s, shared.backend.default = 0.0, Plan()
    wait_for(lambda: is_idle(shared.server, shared.backend), "a slot is still held")


def body(seed: int | None = None, **fields: Any) -> dict[str, Any]:
    return {"input": "Hello there.", "response_format": "pcm", "seed": seed, **fields}


def wait_for(condition: Callable[[], bool], what: str) -> float:
    began = time.perf_counter()
    while not condition():
        assert time.perf_counter() - began < TIMEOUT_S, what
        time.sleep(0.002)
    return time.perf_counter() - began


def post_raw(server: Running, fields: dict[str, Any], version: str = "1.1") -> socket.socket:
    """Send a request over a raw socket with a small receive buffer."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.settimeout(TIMEOUT_S)
    connection.connect(("127.0.0.1", server.port))
    content = json.dumps(fields).encode()
    head = (
        f"POST {PATH} HTTP/{version}\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    connection.sendall(head.encode() + content)
    return connection


def is_idle(server: Running, backend: ScriptedSpeech) -> bool:
    (model,) = server.context.models.loaded()
    engine = model.tts.engine
    counts = (engine.num_running, engine.num_waiting, server.context.streams.num_active)
    return counts == (0, 0, 0) and not backend.active_slots


# -- faults ---------------------------------------------------------------------------------------


def read_broken(client: httpx.Client, fields: dict[str, Any]) -> bytes:
    """The content before the body ended early; fails if the body is complete."""
    received = bytearray()
    with client.stream("POST", PATH, json=fields) as response:
        assert response.status_code == 200
        with pytest.raises(httpx.RemoteProtocolError):
            received.extend(b"".join(keep(response.iter_raw(), received)))
    return bytes(received)


def keep(parts: Iterator[bytes], received: bytearray) -> Iterator[bytes]:
    for part in parts:
        received += part
        yield b""


def test_failure_after_first_audio_leaves_the_body_incomplete(served: Served) -> None:
    assert 0 < len(read_broken(served.client, body(FAILS))) < 50 * 1_920 * 2
    assert served.client.post(PATH, json=body()).status_code == 200


def test_failure_after_first_audio_sends_an_error_event(served: Served) -> None:
    lines = read_broken(served.client, body(FAILS, stream_format="sse")).decode().splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    kinds = [event["type"] for event in events]
    assert kinds[0] == "speech.audio.delta"
    assert kinds[-1] == "speech.audio.error"
    assert "speech.audio.done" not in kinds
    assert "finite" in events[-1]["error"]["message"]


@pytest.mark.parametrize("fields", [{}, {"stream_format": "sse"}, {"stream": False}])
def test_failure_before_first_audio_has_an_error_status(
    served: Served, fields: dict[str, Any]
) -> None:
    response = served.client.post(PATH, json=body(REFUSED, **fields))
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert served.client.post(PATH, json=body()).status_code == 200


def test_failure_of_a_whole_speech_has_an_error_status(served: Served) -> None:
    assert served.client.post(PATH, json=body(FAILS, stream=False)).status_code == 500


def test_failure_over_http_1_0_resets_the_connection(served: Served) -> None:
    """A body of HTTP/1.0 ends with its connection; only a reset marks it as incomplete."""
    with post_raw(served.server, body(), "1.0") as connection:
        assert (
            len(read_all(connection)) > 25 * 1_920 * 2
        )  # control: a complete body ends without an error
    with post_raw(served.server, body(FAILS), "1.0") as connection, pytest.raises(ConnectionError):
        read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    received = b""
    while part := connection.recv(65_536):
        received += part
    return received


def test_runaway_speech_is_not_a_success(served: Served) -> None:
    served.backend.default = Plan(never_ends=True)
    with pytest.raises(httpx.RemoteProtocolError):
        served.client.post(PATH, json=body())
    response = served.client.post(PATH, json=body(stream=False))
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "runaway"
    assert (
        served.client.post(PATH, json=body(seed=1)).status_code == 200
    )  # with a seed the speech is sent as it is


def test_whole_runaway_speech_is_retried_once(served: Served) -> None:
    def admit(prompt: Prompt, sampling: SamplingParams) -> int:
        served.backend.default = Plan(never_ends=not seeds)
        seeds.append(sampling.seed or 0)
        return ScriptedSpeech.admit(served.backend, prompt, sampling)

    seeds: list[int] = []
    with patch.object(served.backend, "admit", admit):
        assert served.client.post(PATH, json=body(stream=False)).status_code == 200
    assert len(set(seeds)) == 2


def test_failure_of_one_stream_changes_no_byte_of_another(served: Served) -> None:
    served.backend.step_s = 0.002
    alone = served.client.post(PATH, json=body(3)).content
    results: list[bytes] = []

    def read() -> None:
        results.append(served.client.post(PATH, json=body(3)).content)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        read_broken(served.client, body(FAILS))
    for thread in threads:
        thread.join()
    assert results == [alone] * 4


# -- clients that disconnect ---------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"stream_format": "sse"}, {"stream": False}])
@pytest.mark.parametrize("is_reset", [False, True])
def test_disconnect_frees_the_slot(served: Served, fields: dict[str, Any], is_reset: bool) -> None:
    served.backend.step_s = 0.005
    connection = post_raw(served.server, body(ENDLESS, **fields))
    wait_for(lambda: bool(served.backend.active_slots), "nothing was admitted")
    if fields.get("stream", True):
        assert connection.recv(10)
    if is_reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    connection.close()
    wait_for(lambda: is_idle(served.server, served.backend), "the slot is still held")
    assert served.client.post(PATH, json=body()).status_code == 200


def test_disconnect_in_the_queue_removes_the_request(tmp_path: Path) -> None:
    backend = ScriptedSpeech(step_s=0.005, max_streams=1)
    with scripted(tmp_path, backend) as (server, _):
        first = post_raw(server, body(ENDLESS))
        wait_for(lambda: bool(backend.active_slots), "nothing was admitted")
        (model,) = server.context.models.loaded()
        second = post_raw(server, body())
        wait_for(lambda: model.tts.engine.num_waiting == 1, "nobody waits")
        second.close()
        wait_for(lambda: model.tts.engine.num_waiting == 0, "it waits still")
        first.close()
        wait_for(lambda: is_idle(server, backend), "the slot is still held")


def test_run_while_connected_cancels_work_on_disconnect() -> None:
    """Without sockets."""

    async def check() -> None:
        left, events = asyncio.Event(), []

        async def receive() -> dict[str, str]:
            await left.wait()
            return {"type": "http.disconnect"}

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)  # a clean-up that awaits
                events.append("closed")

        running = asyncio.ensure_future(run_while_connected(receive, work()))
        await asyncio.sleep(0.01)
        left.set()
        await asyncio.wait_for(running, TIMEOUT_S)
        assert events == ["closed"]

    asyncio.run(check())


def test_run_while_connected_raises_errors_and_passes_cancellation() -> None:
    async def check() -> None:
        ended = []

        async def receive() -> dict[str, str]:
            await asyncio.sleep(TIMEOUT_S)
            return {"type": "http.disconnect"}

        async def fail() -> None:
            raise ValueError("so it goes")

        async def work() -> None:
            try:
                await asyncio.sleep(TIMEOUT_S)
            finally:
                ended.append(True)

        with pytest.raises(ValueError, match="so it goes"):
            await run_while_connected(receive, fail())
        running = asyncio.ensure_future(run_while_connected(receive, work()))
        await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert ended == [True]

    asyncio.run(check())


# -- clients that do not read --------------------------------------------------------------------


def test_client_that_does_not_read_is_disconnected_alone(tmp_path: Path) -> None:
    backend = ScriptedSpeech()
    with scripted(tmp_path, backend, send_timeout_s=1.0) as (server, client):
        num_before = backend.num_admitted
        connection = post_raw(server, body(ENDLESS))
        wait_for(lambda: backend.num_admitted > num_before, "nothing was admitted")
        assert client.post(PATH, json=body()).status_code == 200
        wait_for(lambda: is_idle(server, backend), "the slot is still held")
        connection.close()


# -- a full queue ---------------------------------------------------------------------------------


def test_full_queue_is_refused_at_once_with_retry_after(tmp_path: Path) -> None:
    backend = ScriptedSpeech(step_s=0.005, max_streams=2, max_queue=1)
    with scripted(tmp_path, backend) as (server, client):
        held = [post_raw(server, body(ENDLESS)) for _ in range(3)]
        (model,) = server.context.models.loaded()
        wait_for(lambda: model.tts.engine.num_waiting == 1, "nobody waits")
        for fields in ({}, {"stream": False}, {"stream_format": "sse"}):
            response = client.post(PATH, json=body(**fields))
            assert response.status_code in (429, 503)
            assert int(response.headers["retry-after"]) >= 1
            assert int(response.headers["retry-after-ms"]) >= 1
            assert response.json()["error"]["code"] == "queue_full"
        for connection in held:
            connection.close()
        wait_for(lambda: is_idle(server, backend), "a slot is still held")
        assert client.post(PATH, json=body()).status_code == 200
