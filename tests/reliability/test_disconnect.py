"""G1: clients that leave at any point of a request's life, in any dialect, leave nothing behind.

The controls are servers that do not notice, do not free, or do not end what they began: the same
checks have to find that out.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from starlette.websockets import WebSocketDisconnect

from tests.support.figures import percentile, record
from tests.support.leaving_clients import (
    DIALECTS,
    ENDLESS,
    POINTS,
    Exchange,
    every_exchange,
    run_exchanges,
)
from tests.support.resource_counts import LIMIT_S, Census, find_leaks
from tests.support.scripted_tts import SAMPLES_PER_FRAME, Plan, ScriptedSpeech
from tests.support.serving import Running, running
from tests.support.websocket_client import wait_until
from vivace.backends.base import Frames, Samples, Slot
from vivace.engine.engine import Engine
from vivace.prompt import Prompt
from vivace.serve import response as response_module
from vivace.serve.half_close import POLL_S, PROBE_AFTER_S
from vivace.serve.settings import ServeSettings
from vivace.serve.sockets.session import SocketSession
from vivace.speech import SamplingParams

PEER = 3  # a seed
NUM_FRAMES = 40


@dataclass
class SeededSpeech(ScriptedSpeech):
    """Speaks as loud as its seed says, so that a byte of another's speech is noticed."""

    seeds: dict[Slot, int] = field(default_factory=dict)

    def admit(self, prompt: Prompt, sampling: SamplingParams) -> Slot:
        slot = super().admit(prompt, sampling)
        self.seeds[slot] = sampling.seed or 0
        return slot

    def render(self, slots: Sequence[Slot], frames: Frames) -> list[Samples]:
        samples = super().render(slots, frames)
        loudness = (0.2 + self.seeds[slot] % 97 / 200 for slot in slots)
        return [sound * share for sound, share in zip(samples, loudness, strict=True)]


@pytest.fixture(scope="module")
def backend() -> ScriptedSpeech:
    return SeededSpeech(
        default=Plan(NUM_FRAMES), plans={ENDLESS: Plan(1_000_000)}, step_s=0.002, max_streams=4
    )


@pytest.fixture(scope="module")
def server(backend: ScriptedSpeech, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    voices = tmp_path_factory.mktemp("voices")
    settings = ServeSettings(
        port=0,
        voices=voices,
        drain_timeout_s=1.0,
        wyoming_port=0 if "wyoming" in DIALECTS else None,
    )
    with running(settings, backend.load) as server:
        warm_up(server)
        yield server


def warm_up(server: Running) -> None:
    """Run every protocol once to its end, so that threads and imports exist before counting."""
    for enter in DIALECTS.values():
        enter(server, "ended")(False)


def speak(server: Running) -> bytes:
    body = {"input": "Hello.", "seed": PEER, "response_format": "pcm"}
    answer = httpx.post(f"{server.url}/v1/audio/speech", json=body, timeout=LIMIT_S)
    assert answer.status_code == 200, answer.text
    return answer.content


# -- nothing is left -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "num_rounds", [1, pytest.param(9, marks=pytest.mark.slow)], ids=["once", "nine times"]
)
def test_who_leaves_leaves_nothing_and_disturbs_nobody(
    server: Running, backend: ScriptedSpeech, num_rounds: int
) -> None:
    alone = speak(server)
    assert len(alone) == NUM_FRAMES * SAMPLES_PER_FRAME * 2
    wait_until(lambda: not backend.lives and not server.context.streams.num_active)
    before = Census.of(server, backend)
    heard: list[bytes] = []
    is_over = threading.Event()

    def listen() -> None:
        while not is_over.is_set() or not heard:
            heard.append(speak(server))

    peer = threading.Thread(target=listen)
    peer.start()
    began = time.monotonic()
    run_exchanges(server, every_exchange() * num_rounds)
    seconds = time.monotonic() - began
    is_over.set()
    peer.join(LIMIT_S)
    assert find_leaks(server, backend, before) == {}
    assert heard
    assert {len(each) for each in heard} == {len(alone)}
    assert set(heard) == {alone}
    if num_rounds > 1:
        num_visits = num_rounds * len(every_exchange())
        record(
            "G1 leaving",
            visits=num_visits,
            dialects=len(DIALECTS),
            points=len(POINTS),
            leaks=0,
            peer_speeches=len(heard),
            peer_differences=0,
            seconds=round(seconds, 1),
        )


# -- the engine is told --------------------------------------------------------------------------

ASKING = [
    Exchange(dialect, "asked", is_reset)
    for dialect in DIALECTS
    for is_reset in (True, False)
    if dialect != "omni-ahead"  # which takes it back
]


def is_told(server: Running, patience_s: float = LIMIT_S) -> bool:
    """Whether nobody is spoken to any more, though no turn ends."""
    (model,) = server.context.models.loaded()
    engine, deadline = model.tts.engine, time.monotonic() + patience_s
    while server.context.streams.num_active or engine.num_running or engine.num_waiting:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


@contextlib.contextmanager
def still(backend: ScriptedSpeech) -> Iterator[None]:
    """No turn ends meanwhile, so nothing but its client's leaving ends a speech."""
    backend.is_open.clear()
    try:
        yield
    finally:
        backend.is_open.set()


def test_the_engine_is_told_while_it_is_in_a_turn(server: Running, backend: ScriptedSpeech) -> None:
    with still(backend):
        goings = [(DIALECTS[each.dialect](server, "asked"), each.is_reset) for each in ASKING]
        wait_until(lambda: server.context.streams.num_active == len(ASKING))
        for go, is_reset in goings:
            go(is_reset)
        assert is_told(server)
    assert speak(server)


def looks_half_closed(exchange: Exchange) -> bool:
    """Whether the client may still read: a FIN before the response, over HTTP."""
    return exchange.dialect.startswith("http") and not exchange.is_reset


@pytest.mark.slow  # on a machine with nothing else to do
@pytest.mark.parametrize("is_half", [False, True], ids=["left", "perhaps half-closed"])
def test_engine_is_told_of_a_departure_in_time(
    server: Running, backend: ScriptedSpeech, monkeypatch: pytest.MonkeyPatch, is_half: bool
) -> None:
    """Within 100 ms; where it may be a half-close, after one probe."""
    monkeypatch.setattr(backend, "step_s", 0.2)  # no speech ends meanwhile
    monkeypatch.setattr(backend, "default", Plan(1_000_000))
    (model,) = server.context.models.loaded()
    engine, waited = model.tts.engine, []
    for exchange in [each for each in ASKING if looks_half_closed(each) == is_half] * 10:
        assert is_told(server)
        go = DIALECTS[exchange.dialect](server, "asked")
        wait_until(lambda: engine.num_running == 1)
        began = time.monotonic()
        go(exchange.is_reset)
        while engine.num_running:
            assert time.monotonic() < began + LIMIT_S
            time.sleep(0.0005)
        waited.append(time.monotonic() - began)
    record(
        "G1 engine told" + " by a probe" * is_half,
        departures=len(waited),
        p50_ms=round(1e3 * percentile(waited, 0.5), 1),
        p99_ms=round(1e3 * percentile(waited, 0.99), 1),
        max_ms=round(1e3 * max(waited), 1),
    )
    assert percentile(waited, 0.99) <= 0.1 + is_half * (PROBE_AFTER_S + 2 * POLL_S)


# -- the controls --------------------------------------------------------------------------------


async def just_run(receive: Any, work: Any) -> None:
    """Starlette's way, which looks for the client when it sends."""
    await work


async def run_and_leave(session: SocketSession) -> None:
    """A socket's session that does not end what it began."""
    draining = asyncio.ensure_future(session.context.streams.draining.wait())
    with contextlib.suppress(WebSocketDisconnect):
        await session._websocket.accept()
        await session.greet()
        await session._read(draining)
    draining.cancel()


@pytest.mark.parametrize(
    ("dialect", "target", "name", "broken"),
    [
        ("http-whole", response_module, "run_while_connected", just_run),
        ("omni", SocketSession, "run", run_and_leave),
    ],
)
def test_a_server_that_does_not_notice_is_found_out(
    server: Running,
    backend: ScriptedSpeech,
    monkeypatch: pytest.MonkeyPatch,
    dialect: str,
    target: object,
    name: str,
    broken: object,
) -> None:
    monkeypatch.setattr(target, name, broken)
    with still(backend):
        go = DIALECTS[dialect](server, "asked")
        wait_until(lambda: server.context.streams.num_active == 1)
        go(True)
        assert not is_told(server, patience_s=0.5)
    end_all(server, backend)


def test_an_engine_that_frees_no_slot_is_found_out(
    server: Running, backend: ScriptedSpeech, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Census.of(server, backend)
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "_release", lambda engine, utterance: None)
        run_exchanges(server, [Exchange("http", "first", True)])
        assert find_leaks(server, backend, before, patience_s=0.5).keys() >= {"slots"}
    backend.lives.clear()


def end_all(server: Running, backend: ScriptedSpeech) -> None:
    """What the broken server goes on with, so that the test can end."""
    for life in list(backend.lives.values()):
        life.max_frames = life.num_made + 1
    wait_until(lambda: server.context.streams.num_active == 0)
