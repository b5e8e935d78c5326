"""Turns of backends without shared work, such as a CPU: each turn steps one utterance."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.support.scripted_backend import ScriptedBackend, open_blocks, script, wait_until_empty
from vivace.engine.engine import Engine
from vivace.engine.limits import EngineLimits
from vivace.engine.turns.scheduler import MAX_WHILE_OTHERS_WAIT, Plan, Scheduler
from vivace.engine.utterances.utterance import Utterance
from vivace.speech import SamplingParams


def waiting(num_wanted: int, num_rendered: int = 0, read_at: float = 0.0) -> Utterance:
    """An utterance whose reader waits for `num_wanted` frames; admitted if some are rendered."""
    one = Utterance(prompt=script(1_000), sampling=SamplingParams(seed=1), wake=lambda: None)
    one.num_wanted, one.read_at = num_wanted, read_at
    if num_rendered:
        one.admit(0, 0.0)
        one.make(num_rendered, "running")
        one.num_rendered = num_rendered
    return one


def scheduler_of(
    running: list[Utterance], queue: list[Utterance], num_slots: int = 8
) -> Scheduler[Utterance]:
    return Scheduler(
        EngineLimits(), num_slots, False, deque(queue), running=[*running], _active=[*running]
    )


def test_new_utterances_are_stepped_first_in_order() -> None:
    old = waiting(20, 12, read_at=1.0)
    first, second = waiting(1, read_at=3.0), waiting(1, read_at=2.0)
    scheduler = scheduler_of([old], [first, second])
    assert scheduler.plan() == Plan((first,), (first,), 1)
    first.num_wanted = 0  # its request is answered
    assert scheduler.plan() == Plan((second,), (second,), 1)
    second.num_wanted = 0
    assert scheduler.plan() == Plan((), (old,), 8)


def test_longest_waiting_utterance_is_stepped_next() -> None:
    late, early = waiting(20, 12, read_at=7.0), waiting(20, 12, read_at=5.0)
    scheduler = scheduler_of([late, early], [])
    assert scheduler.plan() == Plan((), (early,), MAX_WHILE_OTHERS_WAIT)


def test_turn_is_short_while_a_request_is_queued() -> None:
    running, queued = waiting(20, 12), waiting(1)
    assert scheduler_of([running], [queued], num_slots=1).plan().num_frames == MAX_WHILE_OTHERS_WAIT


def test_unread_utterance_is_admitted_without_delaying_others() -> None:
    unread, other = waiting(0), waiting(1)
    scheduler = scheduler_of([], [unread, other])
    assert scheduler.plan() == Plan((unread,))
    assert scheduler.plan() == Plan((other,), (other,), 1)


@pytest.mark.parametrize("sizes", [1, [1, 2, 4, 8], [9, 2]])
def test_concurrent_readers_get_their_frames_in_single_turns(
    sizes: int | list[int],
) -> None:
    backend = ScriptedBackend(shares_work=False, renders_beside=False)
    engine = Engine(backend)

    def read(seed: int) -> np.ndarray:
        return np.concatenate([each.codes for each in open_blocks(engine, 40, seed, sizes)])

    with ThreadPoolExecutor(8) as pool:
        for seed, codes in enumerate(pool.map(read, range(8))):
            expected = np.stack((np.full(40, seed), np.arange(40)), axis=1)
            assert np.array_equal(codes, expected)
    assert {num_rows for num_rows, _ in backend.steps} == {1}
    wait_until_empty(engine, backend)
