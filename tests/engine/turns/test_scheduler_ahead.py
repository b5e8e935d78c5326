"""Frames that a GPU makes ahead of the reader of one utterance, while others are rendered."""

from __future__ import annotations

import pytest

from tests.support.scripted_backend import BusyBackend, open_blocks, script
from vivace.engine.engine import Engine
from vivace.engine.limits import PACES, EngineLimits
from vivace.engine.streams.chunks import WHOLE
from vivace.engine.turns.scheduler import Plan, Scheduler
from vivace.engine.utterances.utterance import Utterance
from vivace.speech import SamplingParams

PACE = PACES["balanced"]


def rendering(num_read: int, num_wanted: int, num_made: int) -> Utterance:
    """A running utterance whose frames after `num_read` are being rendered."""
    one = Utterance(prompt=script(1_000), sampling=SamplingParams(seed=1), wake=lambda: None)
    one.admit(0, 1.0)
    one.make(num_made, "running")
    one.num_read = one.num_rendered = num_read
    one.num_wanted = num_wanted
    return one


def plan_of(*running: Utterance) -> Plan[Utterance]:
    scheduler = Scheduler(EngineLimits(), 8, running=[*running], _active=[*running])
    return scheduler.plan(is_busy=True)


def test_turn_ahead_is_as_long_as_the_request_that_is_rendered() -> None:
    one = rendering(num_read=8, num_wanted=16, num_made=24)
    assert plan_of(one) == Plan((), (one,), 16)


@pytest.mark.parametrize("num_wanted", [2, 8, PACE.max_frames - 1])
def test_turn_ahead_of_a_shorter_request_has_the_usual_length(num_wanted: int) -> None:
    """A longer turn would delay the first audio of another utterance."""
    one = rendering(num_read=8, num_wanted=num_wanted, num_made=8 + num_wanted)
    assert plan_of(one) == Plan((), (one,), PACE.min_frames)
    full = rendering(num_read=8, num_wanted=num_wanted, num_made=8 + PACE.max_ahead)
    assert plan_of(full) == Plan()


def test_turn_ahead_fills_the_frames_that_may_be_made_ahead() -> None:
    one = rendering(num_read=8, num_wanted=16, num_made=24 + PACE.max_ahead - 6)
    assert plan_of(one) == Plan((), (one,), 6)
    one = rendering(num_read=8, num_wanted=16, num_made=24 + PACE.max_ahead)
    assert plan_of(one) == Plan()


def test_frames_without_a_request_are_all_made_ahead() -> None:
    one = rendering(num_read=24, num_wanted=0, num_made=24 + PACE.max_ahead)
    assert one.num_ahead == PACE.max_ahead
    assert plan_of(one) == Plan()


def test_several_utterances_with_requests_of_whole_turns_run_not_ahead() -> None:
    assert plan_of(rendering(8, 16, 24), rendering(8, 16, 24)) == Plan()


def test_backend_without_shared_work_makes_no_turn_ahead() -> None:
    one = rendering(num_read=8, num_wanted=16, num_made=24)
    scheduler = Scheduler(EngineLimits(), 8, shares_work=False, running=[one], _active=[one])
    assert scheduler.plan(is_busy=True) == Plan()


def test_next_turn_of_a_whole_text_starts_before_the_samples_of_the_last() -> None:
    backend = BusyBackend()
    blocks = open_blocks(Engine(backend), 1_000, 0, size=WHOLE)
    assert len(next(blocks).codes) == WHOLE[0]
    backend.events.clear()
    assert len(next(blocks).codes) == WHOLE[1]
    assert backend.events[:5] == [
        "frames started", "frames there", "samples started", "frames started", "samples there"
    ]  # fmt: skip
    assert backend.steps[:3] == [(1, WHOLE[0]), (1, WHOLE[1]), (1, WHOLE[1])]
    del blocks
