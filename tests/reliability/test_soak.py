"""G9: resources do not grow under long mixed traffic. The control is a server that leaks.

`python -m tests.reliability --only G9` runs an hour with the embedded voice.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.reliability.soak import SoakLimits, soak
from tests.reliability.soak_fit import MIN_SAMPLES, Sample, measure_growth
from tests.reliability.soak_serve import Leak
from tests.reliability.soak_traffic import KINDS, Remote, run_conversation
from tests.support.figures import record
from tests.support.resource_counts import ResourceCounts, find_leaks
from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from vivace.serve.settings import ServeSettings
from vivace.serve.streams.active import Streams

QUICK = sorted(set(KINDS) - {"slow_headers"})  # waits for a timeout
NUM_SLOW = 10_000  # conversations
pytest.importorskip("wyoming")

# -- the line through the samples ------------------------------------------------------------------


def steady_samples(num_samples: int = 40) -> list[Sample]:
    """Return samples with fluctuating memory, a cache that fills and pools that start threads."""
    chance = random.Random(3)
    return [
        Sample(
            seconds=60.0 * n,
            requests=120 * n,
            memory_kib=400_000 + chance.randint(-900, 900) + (0 if n else -30_000),
            files=25 + (n % 7 == 3),
            threads=8 if n > 4 else 4 + n,
            tasks=5,
        )
        for n in range(num_samples)
    ]


def test_fluctuating_values_are_not_reported_as_growth() -> None:
    assert measure_growth(steady_samples()).leaks() == []


@pytest.mark.parametrize(
    ("name", "per_sample", "called"),
    [
        ("memory_kib", 240, "memory"),  # 2 KiB per request
        ("files", 0.1, "files"),
        ("threads", 0.1, "threads"),
        ("tasks", 0.1, "tasks"),
        ("children", 0.1, "children"),
    ],
)
def test_control_leak_is_detected(name: str, per_sample: float, called: str) -> None:
    leaky = [
        replace(each, **{name: getattr(each, name) + int(n * per_sample)})
        for n, each in enumerate(steady_samples())
    ]
    assert measure_growth(leaky).leaks() == [called]


def test_total_memory_growth_is_limited_for_any_number_of_requests() -> None:
    grown = [
        replace(each, requests=100_000 * n, memory_kib=each.memory_kib + 1_024 * n)
        for n, each in enumerate(steady_samples())
    ]
    growth = measure_growth(grown)
    assert growth.kib_a_request < 1
    assert growth.leaks(most_mib=8.0) == ["memory"]


def test_too_few_samples_are_an_error() -> None:
    with pytest.raises(ValueError, match="run longer"):
        measure_growth(steady_samples(MIN_SAMPLES - 1))


# -- in this process, by counts ------------------------------------------------------------------


@contextmanager
def leaky_server(folder: Path) -> Iterator[tuple[Running, ScriptedSpeech]]:
    backend = ScriptedSpeech(default=Plan(8), max_streams=16)
    settings = ServeSettings(port=0, voices=folder, wyoming_port=0, drain_timeout_s=1.0)
    with running(settings, backend.load) as server:
        yield server, backend


def run_conversations(server: Running, rounds: int, seed: int) -> list[str]:
    """Run every kind of conversation, eight at a time; return the faults."""
    assert server.server.wyoming_url is not None
    remote = Remote(server.port, int(server.server.wyoming_url.rpartition(":")[2]))
    chances = ((kind, random.Random(f"{seed}/{n}")) for n in range(rounds) for kind in QUICK)
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda each: run_conversation(each[0], remote, each[1]), chances)
        return [fault for fault in found if fault is not None]


def test_mixed_traffic_releases_all_resources(tmp_path: Path) -> None:
    with leaky_server(tmp_path) as (server, backend):
        assert run_conversations(server, 1, seed=1) == []
        before = ResourceCounts.of(server, backend)
        assert run_conversations(server, 4, seed=2) == []
        assert find_leaks(server, backend, before) == {}


def test_control_leaky_server_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leak = Leak(every=1)
    with leaky_server(tmp_path) as (server, backend):
        run_conversations(server, 1, seed=1)
        before = ResourceCounts.of(server, backend)
        monkeypatch.setattr(Streams, "open", leak.wrap(Streams.open))
        run_conversations(server, 4, seed=2)
        leaks = find_leaks(server, backend, before, timeout_s=0.5)
        leak.close(server.loop)
    assert leaks.keys() >= {"tasks", "threads", "files"}


# -- server process, by hand ---------------------------------------------------------------------


@pytest.mark.slow
def test_resources_do_not_grow_in_10000_conversations() -> None:
    limits = SoakLimits(requests=NUM_SLOW, interval_requests=NUM_SLOW // 25)
    report = soak(limits, "--scripted", most_mib=8.0)
    record(
        "G9 scripted",
        requests=report["requests"],
        faults=report["faults"],
        **{f"grew_{name}": value for name, value in report["after_warm_up"].items()},
    )
    assert report["first_faults"] == []
    assert report["leaks"] == []
    assert report["exit_code"] == 0


@pytest.mark.slow  # the control
def test_control_leaky_process_is_detected() -> None:
    limits = SoakLimits(requests=600, interval_requests=50)
    report = soak(limits, "--scripted", "--leak", most_mib=8.0)
    assert set(report["leaks"]) >= {"memory", "files", "threads", "tasks"}
