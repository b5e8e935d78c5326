"""G1: clients that disconnect at any point, in any protocol, leave no resources behind.

The controls are servers that ignore disconnects, keep slots or do not cancel speech: the same
checks must detect them.
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

from tests.support.disconnecting_clients import (
    ENDLESS,
    POINTS,
    PROTOCOLS,
    Exchange,
    every_exchange,
    run_exchanges,
)
from tests.support.figures import percentile, record
from tests.support.resource_counts import LIMIT_S, ResourceCounts, find_leaks
from tests.support.scripted_tts import SAMPLES_PER_FRAME, Plan, ScriptedSpeech
from tests.support.serving import Running, running
from tests.support.websocket_client import wait_until
from vivace.backends.base import Frames, Samples, Slot
from vivace.engine.turns.worker import EngineWorker
from vivace.prompt import Prompt
from vivace.serve.http import response as response_module
from vivace.serve.http.half_close import POLL_S, PROBE_AFTER_S
from vivace.serve.settings import ServeSettings
from vivace.serve.speaking import session as session_module
from vivace.speech import SamplingParams

PEER = 3  # a seed
NUM_FRAMES = 40


@dataclass
class SeededSpeech(ScriptedSpeech):
    """A backend whose volume depends on the seed, so that audio of another stream is detected."""

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
        wyoming_port=0 if "wyoming" in PROTOCOLS else None,
    )
    with running(settings, backend.load) as server:
        warm_up(server)
        yield server


def warm_up(server: Running) -> None:
    """Run every protocol once to its end, so that threads and imports exist before counting."""
    for enter in PROTOCOLS.values():
        enter(server, "ended")(False)


def speak(server: Running) -> bytes:
    body = {"input": "Hello.", "seed": PEER, "response_format": "pcm"}
    answer = httpx.post(f"{server.url}/v1/audio/speech", json=body, timeout=LIMIT_S)
    assert answer.status_code == 200, answer.text
    return answer.content


# -- no resources left----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "num_rounds", [1, pytest.param(9, marks=pytest.mark.slow)], ids=["once", "nine times"]
)
def test_disconnect_releases_all_resources_and_affects_no_other_client(
    server: Running, backend: ScriptedSpeech, num_rounds: int
) -> None:
    alone = speak(server)
    assert len(alone) == NUM_FRAMES * SAMPLES_PER_FRAME * 2
    wait_until(lambda: not backend.active_slots and not server.context.streams.num_active)
    before = ResourceCounts.of(server, backend)
    received: list[bytes] = []
    is_over = threading.Event()

    def listen() -> None:
        while not is_over.is_set() or not received:
            received.append(speak(server))

    peer = threading.Thread(target=listen)
    peer.start()
    began = time.monotonic()
    run_exchanges(server, every_exchange() * num_rounds)
    seconds = time.monotonic() - began
    is_over.set()
    peer.join(LIMIT_S)
    assert find_leaks(server, backend, before) == {}
    assert received
    assert {len(each) for each in received} == {len(alone)}
    assert set(received) == {alone}
    if num_rounds > 1:
        num_visits = num_rounds * len(every_exchange())
        record(
            "G1 leaving",
            visits=num_visits,
            dialects=len(PROTOCOLS),
            points=len(POINTS),
            leaks=0,
            peer_speeches=len(received),
            peer_differences=0,
            seconds=round(seconds, 1),
        )


# -- time to the engine --------------------------------------------------------------------------

ASKING = [
    Exchange(protocol, "asked", is_reset)
    for protocol in PROTOCOLS
    for is_reset in (True, False)
    if protocol != "omni-ahead"  # reverts the patch
]


def is_engine_empty(server: Running, timeout_s: float = LIMIT_S) -> bool:
    """Whether the engine has no utterances left, although no turn ends."""
    (model,) = server.context.models.loaded()
    engine, deadline = model.tts.engine, time.monotonic() + timeout_s
    while server.context.streams.num_active or engine.num_running or engine.num_waiting:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


@contextlib.contextmanager
def blocked_backend(backend: ScriptedSpeech) -> Iterator[None]:
    """No turn ends meanwhile, so only the disconnect can end a speech."""
    backend.is_open.clear()
    try:
        yield
    finally:
        backend.is_open.set()


def test_disconnect_during_a_turn_reaches_the_engine(
    server: Running, backend: ScriptedSpeech
) -> None:
    with blocked_backend(backend):
        goings = [(PROTOCOLS[each.protocol](server, "asked"), each.is_reset) for each in ASKING]
        wait_until(lambda: server.context.streams.num_active == len(ASKING))
        for go, is_reset in goings:
            go(is_reset)
        assert is_engine_empty(server)
    assert speak(server)


def may_be_half_closed(exchange: Exchange) -> bool:
    """Whether the server cannot tell a close from a half-close: an HTTP FIN before the response."""
    return exchange.protocol.startswith("http") and not exchange.is_reset


@pytest.mark.slow  # needs a quiet machine
@pytest.mark.parametrize("is_half", [False, True], ids=["left", "perhaps half-closed"])
def test_disconnect_reaches_the_engine_in_time(
    server: Running, backend: ScriptedSpeech, monkeypatch: pytest.MonkeyPatch, is_half: bool
) -> None:
    """Within 100 ms, or after one probe if it may be a half-close."""
    monkeypatch.setattr(backend, "step_s", 0.2)  # no speech ends during the test
    monkeypatch.setattr(backend, "default", Plan(1_000_000))
    (model,) = server.context.models.loaded()
    engine, waited = model.tts.engine, []
    for exchange in [each for each in ASKING if may_be_half_closed(each) == is_half] * 10:
        assert is_engine_empty(server)
        go = PROTOCOLS[exchange.protocol](server, "asked")
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


async def run_without_disconnects(receive: Any, work: Any) -> None:
    """Starlette's behaviour: it detects a disconnect only when it sends."""
    await work


async def cancel_nothing(tasks: list[asyncio.Task[Any]]) -> None:
    """A session that does not cancel its speech."""


@pytest.mark.parametrize(
    ("protocol", "target", "name", "broken"),
    [
        ("http-whole", response_module, "run_while_connected", run_without_disconnects),
        ("omni", session_module, "cancel_all", cancel_nothing),
    ],
)
def test_control_server_that_ignores_disconnects_is_detected(
    server: Running,
    backend: ScriptedSpeech,
    monkeypatch: pytest.MonkeyPatch,
    protocol: str,
    target: object,
    name: str,
    broken: object,
) -> None:
    monkeypatch.setattr(target, name, broken)
    with blocked_backend(backend):
        go = PROTOCOLS[protocol](server, "asked")
        wait_until(lambda: server.context.streams.num_active == 1)
        go(True)
        assert not is_engine_empty(server, timeout_s=0.5)
    end_all(server, backend)


def test_control_engine_that_keeps_slots_is_detected(
    server: Running, backend: ScriptedSpeech, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ResourceCounts.of(server, backend)
    with monkeypatch.context() as patch:
        patch.setattr(EngineWorker, "_release", lambda worker, utterance: None)
        run_exchanges(server, [Exchange("http", "first", True)])
        assert find_leaks(server, backend, before, timeout_s=0.5).keys() >= {"slots"}
    backend.active_slots.clear()


def end_all(server: Running, backend: ScriptedSpeech) -> None:
    """End the speech that the broken server continues."""
    for progress in list(backend.active_slots.values()):
        progress.max_frames = progress.num_made + 1
    wait_until(lambda: server.context.streams.num_active == 0)
