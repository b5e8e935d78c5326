"""Clients that leave at every moment of a request's life leave nothing behind (G1)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from scripted_tts import Plan, ScriptedSpeech
from serving import Running, running

from vivace.serve import body as body_module
from vivace.serve.body import RESET
from vivace.serve.settings import ServeSettings

PATH = "/v1/audio/speech"
ENDLESS = 14  # a seed
NUM_LEAVING = 120
PATIENCE_S = 20.0
KINDS: tuple[dict[str, Any], ...] = (
    {"response_format": "pcm"},
    {"response_format": "mp3"},
    {"response_format": "opus", "stream_format": "sse"},
    {"response_format": "wav", "stream": False},
)


@pytest.fixture
def backend() -> ScriptedSpeech:
    return ScriptedSpeech(plans={ENDLESS: Plan(1_000_000)}, step_s=0.002, max_streams=4)


@pytest.fixture
def server(backend: ScriptedSpeech, tmp_path: Path) -> Iterator[Running]:
    settings = ServeSettings(port=0, voices=tmp_path, max_queue=8, drain_timeout_s=1.0)
    with running(settings, backend.load) as server:
        yield server


def leave(port: int, fields: dict[str, Any], chance: random.Random) -> None:
    """Ask for a speech without an end and go away: somewhere in the request, or somewhere later."""
    content = json.dumps({"input": "Hello there.", "seed": ENDLESS, **fields}).encode()
    head = f"POST {PATH} HTTP/1.1\r\nhost: x.localhost\r\ncontent-type: application/json\r\n"
    told = head.encode() + f"content-length: {len(content)}\r\n\r\n".encode() + content
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
        if chance.random() < 0.2:
            connection.sendall(told[: chance.randrange(len(told))])
        else:
            connection.sendall(told)
            time.sleep(chance.choice((0, 0.001, 0.005, 0.02, 0.05)))
            if chance.random() < 0.5:
                connection.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    connection.recv(chance.choice((1, 100, 100_000)))
        if chance.random() < 0.5:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def leave_often(server: Running) -> None:
    chance = random.Random(7)
    for number in range(NUM_LEAVING):
        leave(server.port, KINDS[number % len(KINDS)], chance)


def count_all(server: Running) -> dict[str, int]:
    """What a request takes: tasks of the loop, threads, open files, streams."""
    (model,) = server.context.models.loaded()
    tasks = asyncio.run_coroutine_threadsafe(_count_tasks(), server.loop).result(PATIENCE_S)
    return {
        "tasks": tasks,
        "threads": threading.active_count(),
        "files": len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0,
        "streams": server.context.streams.num_active,
        "running": model.tts.engine.num_running,
        "waiting": model.tts.engine.num_waiting,
    }


async def _count_tasks() -> int:
    return len(asyncio.all_tasks())


def settles(server: Running, before: dict[str, int], patience_s: float) -> bool:
    """Whether everything comes back to what it was."""
    deadline = time.perf_counter() + patience_s
    while time.perf_counter() < deadline:
        now = count_all(server)
        if all(now[name] <= count for name, count in before.items()):
            return True
        time.sleep(0.05)
    return False


def warm(client: httpx.Client) -> bytes:
    """What a quiet server says; every format once, so that threads and imports are there."""
    for fields in KINDS:
        assert client.post(PATH, json={"input": "Hello.", **fields}).status_code == 200
    return client.post(PATH, json={"input": "Hello.", "seed": 3, **KINDS[0]}).content


def test_those_who_leave_take_everything_with_them(
    server: Running, backend: ScriptedSpeech
) -> None:
    with httpx.Client(base_url=server.url, timeout=PATIENCE_S, verify=False) as client:
        alone = warm(client)
        settles(server, {"streams": 0, "running": 0}, PATIENCE_S)
        before = count_all(server)
        before["threads"] += 4  # a pool may grow a little
        leave_often(server)
        assert settles(server, before, PATIENCE_S), (before, count_all(server))
        assert not backend.lives
        assert warm(client) == alone


def test_a_server_that_does_not_notice_leaving_is_found_out(
    server: Running, backend: ScriptedSpeech, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the test above: Starlette's way, which looks for the client when it sends."""

    async def just_run(receive: Callable[[], Any], work: Coroutine[Any, Any, None]) -> None:
        await work

    with httpx.Client(base_url=server.url, timeout=PATIENCE_S, verify=False) as client:
        warm(client)
        before = count_all(server)
        monkeypatch.setattr(body_module, "run_while_connected", just_run)
        backend.is_open.clear()  # no speech ends by itself meanwhile
        try:
            for _ in range(3):
                leave(server.port, {"stream": False}, random.Random(3))
            began = time.monotonic()
            while not server.context.streams.num_active and time.monotonic() < began + PATIENCE_S:
                time.sleep(0.01)  # until the server has read what they asked
            assert not settles(server, before, 1.0)
        finally:
            backend.is_open.set()
    for life in backend.lives.values():  # let them end
        life.max_frames = life.num_made + 1
