"""G4: slow clients are aborted in time, and other clients are not delayed.

The control is a server without timeouts: the same check finds all slow clients still connected.
`tests/serve/http/test_timeouts.py` tests each timeout alone.
"""

from __future__ import annotations

import gc
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.figures import memory_mib, percentile, record
from tests.support.project import ROOT
from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from tests.support.websocket_client import wait_until
from vivace.serve import server as server_module
from vivace.serve.http.listener import bind
from vivace.serve.settings import ServeSettings

NEVER_S = 10_000.0
ENDLESS = Plan(1_000_000)
BASELINE_S = 15.0  # measurement without slow clients
LIMIT_S = 120.0  # generous, for a busy machine


@dataclass(frozen=True)
class Size:
    headers: int
    bodies: int
    readers: int


@dataclass
class Attack:
    process: subprocess.Popen[str]

    def kept(self) -> dict[str, list[float | None]]:
        """How long each client was connected; None: until the end."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "open\n"
        kept: dict[str, list[float | None]] = json.loads(self.process.stdout.readline())
        return kept


@contextmanager
def attacked(server: Running, size: Size, give_up_s: float) -> Iterator[Attack]:
    counts = (size.headers, size.bodies, size.readers)
    with client_process("slow_client", server.port, *counts, give_up_s) as process:
        yield Attack(process)


@contextmanager
def client_process(program: str, *arguments: float) -> Iterator[subprocess.Popen[str]]:
    """A program of `tests.support` in a process of its own, which is killed after the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"tests.support.{program}", *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def opened(tmp_path: Path, **deadlines: float) -> Iterator[tuple[Running, ScriptedSpeech]]:
    backend = ScriptedSpeech(default=Plan(5), plans={7: ENDLESS})
    with running(ServeSettings(port=0, voices=tmp_path, **deadlines), backend.load) as server:  # type: ignore[arg-type]
        yield server, backend


def is_served(client: httpx.Client, server: Running) -> bool:
    """Speech of another client. On a busy machine that client may itself be too slow once."""
    body = {"input": "Hello.", "response_format": "pcm"}
    answer = client.post(f"{server.url}/v1/audio/speech", json=body)
    assert answer.status_code in (200, 408)
    return answer.status_code == 200


def test_slow_clients_are_aborted_and_other_clients_are_served(tmp_path: Path) -> None:
    size = Size(headers=30, bodies=10, readers=8)
    deadlines = {"header_timeout_s": 2.0, "body_timeout_s": 2.5, "send_timeout_s": 2.0}
    with (
        opened(tmp_path, **deadlines) as (server, backend),
        httpx.Client(timeout=LIMIT_S) as client,
    ):
        num_before = backend.num_admitted
        with attacked(server, size, LIMIT_S) as attack:
            wait_until(lambda: backend.num_admitted >= num_before + size.readers)
            wait_until(lambda: is_served(client, server))
            assert client.get(f"{server.url}/health/live").status_code in (200, 408)
            kept = attack.kept()
            assert (len(kept["headers"]), len(kept["bodies"])) == (30, 10)
            assert None not in (*kept["headers"], *kept["bodies"])
            wait_until(
                lambda: server.context.streams.num_active == 0
            )  # the slow readers were aborted
        wait_until(lambda: not backend.active_slots)


def test_control_server_without_timeouts_is_detected(tmp_path: Path) -> None:
    deadlines = dict.fromkeys(("header_timeout_s", "body_timeout_s", "send_timeout_s"), NEVER_S)
    with (
        opened(tmp_path, drain_timeout_s=0.5, **deadlines) as (server, _),
        attacked(server, Size(headers=3, bodies=3, readers=3), give_up_s=3.0) as attack,
    ):
        wait_until(lambda: server.context.streams.num_active == 3)
        assert attack.kept() == {"headers": [None] * 3, "bodies": [None] * 3}
        assert server.context.streams.num_active == 3


def bind_narrow(*where: Any) -> socket.socket:
    """Use small kernel buffers; the default ones hold minutes of speech."""
    listener = bind(*where)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
    return listener


@dataclass(frozen=True)
class Round:
    """Latencies of another client: speech and health."""

    began: float
    first_byte_ms: float
    health_ms: float


@contextmanager
def others(server: Running) -> Iterator[list[Round]]:
    """Measure another client in a separate process until the block ends."""
    rounds: list[Round] = []
    with client_process("probe_client", server.port) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield rounds
        output, _ = process.communicate("stop\n", timeout=LIMIT_S)
        rounds += [Round(*each) for each in json.loads(output)]


def first_byte_p99_ms(rounds: list[Round]) -> float:
    return percentile([each.first_byte_ms for each in rounds], 0.99)


def wait_until_aborted(backend: ScriptedSpeech, size: Size) -> float:
    """Wait until the last reader is aborted; return the longest connection time."""
    seen: dict[int, tuple[float, float]] = {}  # first and last time by slot
    began, is_over = time.monotonic(), False
    while not is_over:
        now = time.monotonic()
        assert now < began + LIMIT_S
        there = [
            slot
            for slot, progress in list(backend.active_slots.items())
            if progress.plan is ENDLESS
        ]
        seen |= {slot: (seen.get(slot, (now, now))[0], now) for slot in there}
        is_over = len(seen) == size.readers and not there
        time.sleep(0.02)
    return max(last - first for first, last in seen.values())


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Freeze the heap like `vivace serve`: a full collection takes 0.2 s."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@pytest.mark.slow  # needs a quiet machine
def test_464_slow_clients_are_aborted_in_time_without_side_effects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "bind", bind_narrow)
    size = Size(headers=300, bodies=100, readers=64)
    with opened(tmp_path) as (server, backend), frozen_heap():
        settings = server.context.settings
        with others(server) as alone:
            time.sleep(BASELINE_S)
        before_mib = memory_mib()
        with others(server) as rounds, attacked(server, size, LIMIT_S) as attack:
            readers_s = wait_until_aborted(backend, size)
            cut_at, growth_mib = time.monotonic(), memory_mib() - before_mib
            kept = attack.kept()
        wait_until(lambda: not backend.active_slots)
    during = [each for each in rounds if each.began < cut_at]
    headers_s, bodies_s = max(map(_number, kept["headers"])), max(map(_number, kept["bodies"]))
    alone_ms, during_ms = first_byte_p99_ms(alone), first_byte_p99_ms(during)
    health_ms = max(each.health_ms for each in during)
    record(
        "G4 slow clients",
        headers=size.headers,
        bodies=size.bodies,
        readers=size.readers,
        headers_cut_after_s=round(headers_s, 2),
        bodies_cut_after_s=round(bodies_s, 2),
        readers_cut_after_s=round(readers_s, 2),
        others_served=len(during),
        first_byte_p99_ms_alone=round(alone_ms, 1),
        first_byte_p99_ms=round(during_ms, 1),
        health_max_ms=round(health_ms, 1),
        memory_growth_mib=round(growth_mib, 1),
    )
    assert headers_s <= settings.header_timeout_s + 2
    assert bodies_s <= settings.body_timeout_s + 2
    assert readers_s <= settings.send_timeout_s + 2
    assert during_ms <= 2 * alone_ms
    assert health_ms <= 200
    assert growth_mib <= 32


def _number(seconds: float | None) -> float:
    assert seconds is not None, "a slow client was never cut"
    return seconds
