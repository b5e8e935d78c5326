"""G3: excess requests are refused at once, and admitted requests are not slowed down.

The control is a server that admits everything: it refuses no request, and late requests wait long.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
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
from vivace.engine.limits import EngineLoad
from vivace.serve.settings import ServeSettings

NUM_SLOTS, MAX_QUEUE = 4, 4
NUM_FRAMES = 180
FULL_AFTER_S = 2.0
NUM_BYTES = NUM_FRAMES * 1_920 * 2
BODY = {"input": "Hello there.", "response_format": "pcm"}
CLIENT = "tests.support.load_client"


@contextmanager
def opened(tmp_path: Path, frame_s: float = 0.0) -> Iterator[tuple[Running, ScriptedSpeech]]:
    backend = ScriptedSpeech(
        default=Plan(NUM_FRAMES), frame_s=frame_s, max_streams=NUM_SLOTS, max_queue=MAX_QUEUE
    )
    settings = ServeSettings(port=0, voices=tmp_path, max_queue=MAX_QUEUE)
    with running(settings, backend.load) as server:
        yield server, backend


# -- without timing: no request is served meanwhile ------------------------------------------------


@dataclass
class BurstResult:
    """Results of requests that arrived while every slot was busy."""

    statuses: list[int]
    told_when: int  # refusals with a retry time
    whole: int  # complete speeches afterwards

    def is_as_expected(self) -> bool:
        num_taken, num_refused = NUM_SLOTS + MAX_QUEUE, self.statuses.count(429)
        is_bounded = self.statuses.count(200) == num_taken == self.whole
        return is_bounded and num_refused == len(self.statuses) - num_taken == self.told_when


def send_burst(
    server: Running, backend: ScriptedSpeech, num_requests: int, max_taken: int
) -> BurstResult:
    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post(f"{server.url}/v1/audio/speech", json=BODY)

    async def ask_all() -> BurstResult:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=60.0, limits=limits, verify=False) as client:
            tasks = [asyncio.create_task(ask(client)) for _ in range(num_requests)]
            while sum(task.done() for task in tasks) < num_requests - max_taken:
                await asyncio.sleep(0.005)
            assert not any(task.result().status_code == 200 for task in tasks if task.done())
            backend.is_open.set()
            answers = await asyncio.gather(*tasks)
        return BurstResult(
            [answer.status_code for answer in answers],
            sum("retry-after" in a.headers and "retry-after-ms" in a.headers for a in answers),
            sum(a.status_code == 200 and len(a.content) == NUM_BYTES for a in answers),
        )

    backend.is_open.clear()
    return asyncio.run(ask_all())


def test_excess_requests_are_refused_while_all_slots_are_busy(tmp_path: Path) -> None:
    with opened(tmp_path) as (server, backend):
        assert send_burst(
            server, backend, 10 * (NUM_SLOTS + MAX_QUEUE), NUM_SLOTS + MAX_QUEUE
        ).is_as_expected()
        assert httpx.post(f"{server.url}/v1/audio/speech", json=BODY).status_code == 200
        wait_until(lambda: not backend.active_slots and not server.context.streams.num_active)


@pytest.mark.ci
def test_control_server_without_a_queue_limit_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EngineLoad, "is_full", property(lambda load: False))
    with opened(tmp_path) as (server, backend):
        num_requests = 10 * (NUM_SLOTS + MAX_QUEUE)
        assert not send_burst(server, backend, num_requests, num_requests).is_as_expected()


# -- with timing, by hand --------------------------------------------------------------------------


@dataclass(frozen=True)
class OfferedLoad:
    """Results of requests that arrived during a time span."""

    outcomes: list[dict[str, Any]]

    @property
    def taken(self) -> list[dict[str, Any]]:
        return [each for each in self.outcomes if each["status"] == 200]

    @property
    def refused(self) -> list[dict[str, Any]]:
        return [each for each in self.outcomes if each["status"] == 429]

    @property
    def per_s(self) -> float:
        """Return complete speeches per second while all slots are busy.

        Speeches that begin before or end after that span count by their share.
        """
        begins = min(each["due"] for each in self.outcomes) + FULL_AFTER_S
        ends = max(each["due"] for each in self.outcomes)
        spans = [(e["due"] + e["answered_s"], e["ended"]) for e in self.whole]
        parts = [(min(end, ends) - max(first, begins)) / (end - first) for first, end in spans]
        return sum(max(0.0, part) for part in parts) / (ends - begins)

    @property
    def whole(self) -> list[dict[str, Any]]:
        return [each for each in self.taken if each["num_bytes"] == NUM_BYTES]

    def p99_ms(self, outcomes: list[dict[str, Any]]) -> float:
        return 1e3 * percentile([each["answered_s"] for each in outcomes], 0.99)


def offer(server: Running, seconds: float, *load: str) -> OfferedLoad:
    arguments = [str(server.port), json.dumps(BODY), str(seconds), *load]
    command = [sys.executable, "-m", CLIENT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    outcomes = json.loads(done.stdout)
    assert {each["status"] for each in outcomes} <= {200, 429}
    return OfferedLoad(outcomes)


@pytest.mark.parametrize("apart_s", [0.0, 0.25])
def test_measured_rate_is_independent_of_start_times(apart_s: float) -> None:
    """Four slots and speeches of one second, started together or in turn."""
    starts = [turn + apart_s * slot for turn in range(12) for slot in range(4)]
    spoken = {"status": 200, "num_bytes": NUM_BYTES, "answered_s": 0.0}
    outcomes = [{**spoken, "due": start, "ended": start + 1.0} for start in starts]
    assert OfferedLoad(outcomes).per_s == pytest.approx(4.0)
    assert OfferedLoad(outcomes[::2]).per_s == pytest.approx(2.0, rel=0.1)


@pytest.mark.slow  # needs a quiet machine
def test_admitted_requests_are_not_slowed_by_refusals(tmp_path: Path) -> None:
    seconds, missed = 15.0, list[str]()
    with opened(tmp_path, frame_s=0.0055) as (server, _):
        offer(server, 2.0, "--at-once", str(NUM_SLOTS))
        full = offer(server, seconds, "--at-once", str(NUM_SLOTS + MAX_QUEUE))
        assert not full.refused
        before_mib, at_capacity_ms = memory_mib(), full.p99_ms(full.taken)
        for times in (2, 10):
            offered = offer(server, seconds, "--rate", str(times * full.per_s))
            again = offer(server, 2.0, "--at-once", "1")  # at most 5 s later
            refused_ms, taken_ms = offered.p99_ms(offered.refused), offered.p99_ms(offered.taken)
            goodput, growth_mib = offered.per_s / full.per_s, memory_mib() - before_mib
            record(
                f"G3 {times} times the ceiling",
                ceiling_per_s=round(full.per_s, 2),
                requests=len(offered.outcomes),
                refused=len(offered.refused),
                refused_p99_ms=round(refused_ms, 1),
                first_audio_p99_ms=round(taken_ms, 1),
                first_audio_p99_ms_at_capacity=round(at_capacity_ms, 1),
                goodput=round(goodput, 3),
                memory_growth_mib=round(growth_mib, 1),
            )
            assert all(each["retry"] for each in offered.refused)
            assert {each["num_bytes"] for each in offered.taken} == {NUM_BYTES}
            assert again.outcomes
            assert not again.refused
            missed += [] if refused_ms <= 100.0 else [f"refusals at {times}"]
            missed += [] if taken_ms <= 1.5 * at_capacity_ms else [f"first audio at {times}"]
            missed += [] if goodput >= 0.95 else [f"goodput at {times}"]
            missed += [] if growth_mib <= 64 else [f"memory at {times}"]
    assert missed == []


@pytest.mark.slow  # the control
def test_control_server_without_a_queue_limit_makes_clients_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, frame_s=0.0055) as (server, _):
        full = offer(server, 6.0, "--at-once", str(NUM_SLOTS + MAX_QUEUE))
        monkeypatch.setattr(EngineLoad, "is_full", property(lambda load: False))
        offered = offer(server, 6.0, "--rate", str(10 * full.per_s))
        assert not offered.refused
        assert offered.p99_ms(offered.taken) > 1.5 * full.p99_ms(full.taken)
