"""G9: mixed traffic for long, and nothing grows. The control is a server that leaks.

The hour against the embedded voice is `python -m tests.reliability --only G9`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.reliability.soak import Told, soak
from tests.reliability.soak_fit import MIN_SAMPLES, Sample, measure_growth
from tests.reliability.soak_serve import Leak
from tests.reliability.soak_traffic import KINDS, Remote, converse_as
from tests.support.figures import record
from tests.support.resource_counts import Census, find_leaks
from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from vivace.serve.settings import ServeSettings
from vivace.serve.streams import Streams

QUICK = sorted(set(KINDS) - {"trickle"})  # which waits for a deadline
NUM_SLOW = 10_000  # conversations
pytest.importorskip("wyoming")

# -- the line through the samples ------------------------------------------------------------------


def flat(num_samples: int = 40) -> list[Sample]:
    """Memory that wavers, with a cache that fills at first, and pools that start their threads."""
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


def test_what_wavers_does_not_grow() -> None:
    assert measure_growth(flat()).leaks() == []


@pytest.mark.parametrize(
    ("name", "per_sample", "called"),
    [
        ("memory_kib", 240, "memory"),  # 2 KiB a request
        ("files", 0.1, "files"),
        ("threads", 0.1, "threads"),
        ("tasks", 0.1, "tasks"),
        ("children", 0.1, "children"),
    ],
)
def test_a_leak_is_found_out(name: str, per_sample: float, called: str) -> None:
    leaky = [
        replace(each, **{name: getattr(each, name) + int(n * per_sample)})
        for n, each in enumerate(flat())
    ]
    assert measure_growth(leaky).leaks() == [called]


def test_much_memory_is_too_much_however_many_requests_share_it() -> None:
    grown = [
        replace(each, requests=100_000 * n, memory_kib=each.memory_kib + 1_024 * n)
        for n, each in enumerate(flat())
    ]
    growth = measure_growth(grown)
    assert growth.kib_a_request < 1
    assert growth.leaks(most_mib=8.0) == ["memory"]


def test_too_few_samples_show_nothing() -> None:
    with pytest.raises(ValueError, match="run longer"):
        measure_growth(flat(MIN_SAMPLES - 1))


# -- in this process, by counts ------------------------------------------------------------------


@contextmanager
def soaked(folder: Path) -> Iterator[tuple[Running, ScriptedSpeech]]:
    backend = ScriptedSpeech(default=Plan(8), max_streams=16)
    settings = ServeSettings(port=0, voices=folder, wyoming_port=0, drain_timeout_s=1.0)
    with running(settings, backend.load) as server:
        yield server, backend


def talk_at(server: Running, rounds: int, seed: int) -> list[str]:
    """Every kind of conversation so many times, eight at once; what was wrong."""
    assert server.server.wyoming_url is not None
    remote = Remote(server.port, int(server.server.wyoming_url.rpartition(":")[2]))
    chances = ((kind, random.Random(f"{seed}/{n}")) for n in range(rounds) for kind in QUICK)
    with ThreadPoolExecutor(8) as pool:
        told = pool.map(lambda each: converse_as(each[0], remote, each[1]), chances)
        return [fault for fault in told if fault is not None]


def test_mixed_traffic_leaves_nothing_behind(tmp_path: Path) -> None:
    with soaked(tmp_path) as (server, backend):
        assert talk_at(server, 1, seed=1) == []
        before = Census.of(server, backend)
        assert talk_at(server, 4, seed=2) == []
        assert find_leaks(server, backend, before) == {}


def test_a_leaky_server_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leak = Leak(every=1)
    with soaked(tmp_path) as (server, backend):
        talk_at(server, 1, seed=1)
        before = Census.of(server, backend)
        monkeypatch.setattr(Streams, "open", leak.wrap(Streams.open))
        talk_at(server, 4, seed=2)
        leaks = find_leaks(server, backend, before, patience_s=0.5)
        leak.close(server.loop)
    assert leaks.keys() >= {"tasks", "threads", "files"}


# -- a process of its own, by hand ---------------------------------------------------------------


@pytest.mark.slow
def test_ten_thousand_conversations_make_nothing_grow() -> None:
    told = Told(requests=NUM_SLOW, interval_requests=NUM_SLOW // 25)
    report = soak(told, "--scripted", most_mib=8.0)
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
def test_a_leaky_process_is_found_out() -> None:
    told = Told(requests=600, interval_requests=50)
    report = soak(told, "--scripted", "--leak", most_mib=8.0)
    assert set(report["leaks"]) >= {"memory", "files", "threads", "tasks"}
