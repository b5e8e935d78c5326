"""G15: three replicas behind the shipped HAProxy configuration; one is killed, one suspended.

Run by hand, with HAProxy. Only the streams of the killed replica fail, visibly; the others serve
new requests at once; a suspended replica gets no requests; the load is balanced. The control is the
same proxy without checks and retries. `benchmarks/replicas.py` does the same with the embedded
voice, `tests/serve/test_ray_app.py` with Ray, and `test_drain_load.py` restarts two replicas.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.reliability.test_drain_load import NUM_BYTES, Servers, forked
from tests.support.figures import percentile, record
from tests.support.load_client import ask
from tests.support.network import free_port
from tests.support.websocket_client import wait_until

CONFIG = Path(__file__).parents[2] / "deploy" / "proxy" / "haproxy.cfg"
BODY = b'{"input": "Hello there.", "response_format": "pcm"}'
SHORT = b'{"input": "Hi.", "response_format": "pcm", "seed": 3, "max_new_tokens": 1}'
NUM_STREAMS = 64
NUM_SHARED = 10_000
LIMIT_S = 120.0
EVICTED_S = 5.0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="no HAProxy"),
]


@dataclass
class Cluster:
    port: int  # port of the proxy
    pids: list[int]
    urls: list[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def num_spoken(self, number: int) -> int:
        metrics = httpx.get(f"{self.urls[number]}/metrics", timeout=LIMIT_S).text
        wanted = 'vivace_http_requests_total{route="/v1/audio/speech",status="200"}'
        lines = [line for line in metrics.splitlines() if line.startswith(wanted)]
        return sum(int(float(line.split()[1])) for line in lines)


def write_config(folder: Path, port: int, third: str, *, is_blind: bool) -> Path:
    """Write the shipped file with a third server; `is_blind` removes checks and retries."""
    config = CONFIG.read_text().replace("bind :8000", f"bind 127.0.0.1:{port}")
    config += f"    server three {third}\n"
    if is_blind:
        for line in config.splitlines():
            if line.strip().startswith(("retries", "retry-on", "option redispatch")):
                config = config.replace(line, "")
        config = config.replace("check inter", "no-check inter").replace("retries 3", "retries 0")
        config = config.replace("defaults\n", "defaults\n    retries 0\n")
    path = folder / "haproxy.cfg"
    path.write_text(config)
    return path


@pytest.fixture(scope="module")
def launchers() -> Iterator[list[Servers]]:
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "SCRIPTED_SLOTS", str(2 * NUM_STREAMS)
        )  # places for all streams, also without one replica
        yield [stack.enter_context(forked("--drain-timeout=2")) for _ in range(3)]


@contextmanager
def cluster(launchers: list[Servers], folder: Path, *, is_blind: bool = False) -> Iterator[Cluster]:
    started = [each.start() for each in launchers]
    found = Cluster(free_port(), [pid for pid, _ in started], [url for _, url in started])
    one, two, three = (url.removeprefix("http://") for url in found.urls)
    path = write_config(folder, found.port, three, is_blind=is_blind)
    environment = {**os.environ, "VIVACE_ONE": one, "VIVACE_TWO": two}
    proxy = subprocess.Popen(["haproxy", "-db", "-q", "-f", str(path)], env=environment)
    try:
        wait_until(lambda: is_speaking(found), LIMIT_S)
        yield found
    finally:
        proxy.kill()
        proxy.wait(LIMIT_S)
        for pid, launcher in zip(found.pids, launchers, strict=True):
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)
            launcher.wait()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def is_speaking(found: Cluster) -> bool:
    try:
        return httpx.get(f"{found.url}/health/ready", timeout=LIMIT_S).status_code == 200
    except httpx.TransportError:
        return False


def is_whole(outcome: dict[str, Any], num_bytes: int = NUM_BYTES) -> bool:
    is_good = outcome["status"] == 200 and "error" not in outcome
    assert not is_good or outcome["num_bytes"] == num_bytes, "truncated, or said twice"
    return is_good


# -- a kill --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Killed:
    before: list[dict[str, Any]]  # new requests before the kill
    running: list[dict[str, Any]]  # of the 64 streams
    after: list[dict[str, Any]]

    @property
    def num_failed_after(self) -> int:
        return sum(not is_whole(each, 3_840) for each in self.after)


async def probe(port: int, count: int) -> list[dict[str, Any]]:
    """Send a new request every 100 ms, independent of earlier ones."""
    began = time.perf_counter()
    asked = [asyncio.create_task(ask(port, SHORT, began + 0.1 * n)) for n in range(count)]
    return list(await asyncio.gather(*asked))


async def kill_one(found: Cluster) -> Killed:
    """Kill a replica during 64 streams; measure the same without a kill first."""

    async def probe_among(kill: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        now = time.perf_counter()
        streams = [asyncio.create_task(ask(found.port, BODY, now)) for _ in range(NUM_STREAMS)]
        await asyncio.sleep(1.0)
        if kill:
            os.kill(found.pids[0], signal.SIGKILL)
        probes = await probe(found.port, 50)
        return list(await asyncio.gather(*streams)), probes

    _, before = await probe_among(kill=False)
    return Killed(before, *await probe_among(kill=True))


def test_killed_replica_loses_only_its_streams_and_new_requests_are_served(
    launchers: list[Servers], tmp_path: Path
) -> None:
    with cluster(launchers, tmp_path) as found:
        killed = asyncio.run(kill_one(found))
        num_whole = sum(is_whole(each) for each in killed.running)
    before, after = (
        [each["answered_s"] for each in kind] for kind in (killed.before, killed.after)
    )
    record(
        "G15 a kill",
        cases=NUM_STREAMS + len(after),
        streams=NUM_STREAMS,
        streams_failed=NUM_STREAMS - num_whole,
        new_requests=len(after),
        new_requests_failed=killed.num_failed_after,
        first_byte_before_max_s=round(max(before), 3),
        first_byte_after_p50_s=round(percentile(after, 0.5), 3),
        first_byte_after_max_s=round(max(after), 3),
    )
    assert killed.num_failed_after == 0
    assert (
        NUM_STREAMS / 2 < num_whole < NUM_STREAMS
    )  # all of the other replicas, and some of the killed one
    assert max(after) <= 1.0 + max(before)


def test_control_proxy_without_health_checks_is_detected(
    launchers: list[Servers], tmp_path: Path
) -> None:
    with cluster(launchers, tmp_path, is_blind=True) as found:
        assert asyncio.run(kill_one(found)).num_failed_after > 0


# -- suspended replica and load balance -----------------------------------------------------------


async def ask_many(port: int, count: int, at_once: int) -> list[dict[str, Any]]:
    gate, outcomes = asyncio.Semaphore(at_once), []

    async def one() -> None:
        async with gate:
            outcomes.append(await ask(port, SHORT, time.perf_counter()))

    await asyncio.gather(*(one() for _ in range(count)))
    return outcomes


def test_suspended_replica_gets_no_requests(launchers: list[Servers], tmp_path: Path) -> None:
    with cluster(launchers, tmp_path) as found:
        os.kill(found.pids[1], signal.SIGSTOP)
        time.sleep(EVICTED_S)
        outcomes = asyncio.run(asyncio.wait_for(ask_many(found.port, 90, 9), LIMIT_S))
        os.kill(found.pids[1], signal.SIGCONT)
        assert all(is_whole(each, 3_840) for each in outcomes)
        spoken = [found.num_spoken(number) for number in range(3)]
        assert spoken[1] <= 1, spoken  # the start-up probe does not count
        wait_until(lambda: has_come_back(found), LIMIT_S)
    slowest = max(each["answered_s"] for each in outcomes)
    record("G15 no answer", cases=len(outcomes), failed=0, slowest_s=round(slowest, 3))


def has_come_back(found: Cluster) -> bool:
    asyncio.run(ask_many(found.port, 9, 3))
    return found.num_spoken(1) > 1


def test_requests_are_balanced_evenly(launchers: list[Servers], tmp_path: Path) -> None:
    with cluster(launchers, tmp_path) as found:
        outcomes = asyncio.run(ask_many(found.port, NUM_SHARED, 24))
        assert Counter(is_whole(each, 3_840) for each in outcomes) == {True: NUM_SHARED}
        spoken = [found.num_spoken(number) for number in range(3)]
    record("G15 balance", cases=NUM_SHARED, least=min(spoken), most=max(spoken))
    assert min(spoken) >= 0.8 * NUM_SHARED / 3
    assert max(spoken) <= 1.2 * NUM_SHARED / 3
