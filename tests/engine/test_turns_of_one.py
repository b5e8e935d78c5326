"""Turns where a batch gains nothing, as on a CPU: one utterance's, and nobody waits for a batch."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.support.scripted_backend import ScriptedBackend, open_pieces, script, wait_until_empty
from vivace.engine.engine import Engine
from vivace.engine.scheduler import MAX_WHILE_OTHERS_WAIT, EngineLimits, Plan, Scheduler
from vivace.engine.utterance import Utterance
from vivace.speech import SamplingParams


def waiting(num_wanted: int, num_rendered: int = 0, read_at: float = 0.0) -> Utterance:
    """One whose reader waits for so many frames in all; in a slot if it was given some."""
    one = Utterance(prompt=script(1_000), sampling=SamplingParams(seed=1), wake=lambda: None)
    one.num_wanted, one.read_at = num_wanted, read_at
    if num_rendered:
        one.admit(0, 0.0)
        one.make(num_rendered, "running")
        one.num_rendered = num_rendered
    return one


def scheduler_of(running: list[Utterance], queue: list[Utterance], num_slots: int = 8) -> Scheduler:
    return Scheduler(
        EngineLimits(), num_slots, False, deque(queue), running=[*running], active=[*running]
    )


def test_first_audio_comes_before_all_else_in_the_order_of_arrival() -> None:
    old = waiting(20, 12, read_at=1.0)
    first, second = waiting(1, read_at=3.0), waiting(1, read_at=2.0)
    scheduler = scheduler_of([old], [first, second])
    assert scheduler.plan() == Plan((first,), (first,), 1)
    first.num_wanted = 0  # it is read
    assert scheduler.plan() == Plan((second,), (second,), 1)
    second.num_wanted = 0
    assert scheduler.plan() == Plan((), (old,), 8)


def test_then_whoever_has_waited_longest() -> None:
    late, early = waiting(20, 12, read_at=7.0), waiting(20, 12, read_at=5.0)
    scheduler = scheduler_of([late, early], [])
    assert scheduler.plan() == Plan((), (early,), MAX_WHILE_OTHERS_WAIT)


def test_a_turn_is_short_while_somebody_waits_for_a_slot() -> None:
    running, queued = waiting(20, 12), waiting(1)
    assert scheduler_of([running], [queued], num_slots=1).plan().num_frames == MAX_WHILE_OTHERS_WAIT


def test_one_that_nobody_reads_yet_is_admitted_and_delays_no_other() -> None:
    unread, other = waiting(0), waiting(1)
    scheduler = scheduler_of([], [unread, other])
    assert scheduler.plan() == Plan((unread,))
    assert scheduler.plan() == Plan((other,), (other,), 1)


@pytest.mark.parametrize("sizes", [1, [1, 2, 4, 8], [9, 2]])
def test_readers_beside_each_other_all_get_their_frames_from_turns_of_one(
    sizes: int | list[int],
) -> None:
    backend = ScriptedBackend(shares_work=False)
    engine = Engine(backend)

    def read(seed: int) -> np.ndarray:
        return np.concatenate([each.codes for each in open_pieces(engine, 40, seed, sizes)])

    with ThreadPoolExecutor(8) as pool:
        for seed, codes in enumerate(pool.map(read, range(8))):
            expected = np.stack((np.full(40, seed), np.arange(40)), axis=1)
            assert np.array_equal(codes, expected)
    assert {num_rows for num_rows, _ in backend.steps} == {1}
    wait_until_empty(engine, backend)
