"""Turns of a GPU with many utterances: they take turns instead of sharing all of them."""

from __future__ import annotations

from tests.support.scripted_backend import script
from vivace.engine.limits import PACES, EngineLimits
from vivace.engine.turns.scheduler import MAX_BATCH, MAX_SHORT, Scheduler
from vivace.engine.utterances.utterance import Utterance
from vivace.speech import SamplingParams

MIN_FRAMES = PACES["balanced"].min_frames


def waiting(num_wanted: int, num_made: int = 0, admitted_at: float = 1.0) -> Utterance:
    """A running utterance whose reader has read its frames and waits for `num_wanted` more."""
    one = Utterance(prompt=script(1_000), sampling=SamplingParams(seed=1), wake=lambda: None)
    one.admit(0, admitted_at)
    one.num_wanted = num_wanted
    one.make(num_made, "running")
    one.num_rendered = one.num_read = num_made
    return one


def scheduler_of(running: list[Utterance]) -> Scheduler[Utterance]:
    limits = EngineLimits(max_streams=1_000)
    return Scheduler(limits, 1_000, running=[*running], _active=[*running])


def test_few_utterances_share_the_turn_of_a_new_one() -> None:
    old = [waiting(8, 20) for _ in range(MAX_BATCH - 1)]
    plan = scheduler_of([*old, waiting(1)]).plan()
    assert len(plan.stepped) == MAX_BATCH
    assert plan.num_frames == 1


def test_short_turn_of_new_utterances_alternates_with_a_turn_of_the_others() -> None:
    old = [waiting(8, 20) for _ in range(MAX_BATCH)]
    new = [waiting(1), waiting(2)]
    scheduler = scheduler_of([*old, *new])
    for _ in range(2):  # the short turn made no frame, as for lack of text
        short = scheduler.plan()
        assert short.stepped == tuple(new)
        assert short.num_frames == 1
        plan = scheduler.plan()
        assert plan.stepped == tuple(old)
        assert plan.num_frames == 8


def test_new_utterance_waits_until_earlier_ones_have_begun() -> None:
    old, first = [waiting(8, 20) for _ in range(MAX_BATCH)], waiting(1)
    scheduler = scheduler_of([*old, first])
    first.make(scheduler.plan().num_frames, "running")
    second = waiting(1)
    scheduler.running.append(second)
    scheduler.active.append(second)
    for _ in range(MAX_SHORT - 1):
        plan = scheduler.plan()
        assert plan.stepped == (first,)
        first.make(plan.num_frames, "running")
    long = scheduler.plan().stepped
    assert first in long
    assert second not in long
    assert scheduler.plan().stepped == (second,)


def test_short_turns_make_the_shortest_long_turn() -> None:
    """An utterance that begins has as many frames as others get in one turn."""
    old, new = [waiting(8, 20) for _ in range(MAX_BATCH)], waiting(1)
    scheduler = scheduler_of([*old, new])
    for _ in range(MAX_SHORT):
        plan = scheduler.plan()
        assert plan.stepped == (new,)
        new.make(plan.num_frames, "running")
    assert new.num_made == MIN_FRAMES
    assert len(scheduler.plan().stepped) == MAX_BATCH


def test_utterance_with_few_frames_does_not_shorten_the_turn_of_others() -> None:
    old = [waiting(8, 20) for _ in range(MAX_BATCH)]
    young = waiting(2, MIN_FRAMES - 1)
    scheduler = scheduler_of([*old, young])
    stepped = [scheduler.plan().stepped for _ in range(MAX_SHORT + 1)]
    assert stepped == [(young,)] * MAX_SHORT + [tuple(old)]


def test_turns_of_new_utterances_follow_each_other_without_others() -> None:
    new = [waiting(1) for _ in range(MAX_BATCH + 1)]
    scheduler = scheduler_of(new)
    stepped = [scheduler.plan().stepped for _ in range(MAX_SHORT + 1)]
    assert stepped == [tuple(new[:MAX_BATCH])] * (MAX_SHORT + 1)


def test_utterances_that_are_played_first_are_in_the_first_full_batch() -> None:
    late = [waiting(8, 20, admitted_at=2.0) for _ in range(MAX_BATCH // 2)]
    early = [waiting(8, 20, admitted_at=1.0) for _ in range(MAX_BATCH)]
    scheduler = scheduler_of([*late, *early])
    plan = scheduler.plan()
    assert set(plan.stepped) == set(early)
    for one in early:
        one.make(16, "running")  # 1.28 s
    assert set(scheduler.plan().stepped) >= set(late)


def test_prompts_are_admitted_in_groups_while_an_utterance_begins() -> None:
    scheduler = scheduler_of([waiting(1, 1)])
    num_rows = waiting(1).num_prompt_rows
    scheduler.max_prompt_rows = 24 * num_rows + num_rows // 2
    scheduler.queue.extend(waiting(1) for _ in range(72))
    assert len(scheduler.plan().admitted) == 24
    scheduler.running[0].make(MIN_FRAMES, "running")
    assert len(scheduler.plan().admitted) == 48


def test_a_prompt_that_is_longer_than_the_limit_is_admitted_alone() -> None:
    scheduler = scheduler_of([waiting(1, 1)])
    scheduler.max_prompt_rows = 1
    scheduler.queue.extend(waiting(1) for _ in range(2))
    assert len(scheduler.plan().admitted) == 1
    assert len(scheduler.plan().admitted) == 1
    assert not scheduler.queue
