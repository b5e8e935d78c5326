"""Lengths of a GPU's turns that depend on the measured time of a frame."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.scripted_backend import script
from vivace.engine.limits import PACES, EngineLimits
from vivace.engine.turns.scheduler import MAX_SILENT_BATCH, MAX_TURN_S, Scheduler
from vivace.engine.utterances.utterance import Utterance
from vivace.speech import SamplingParams

MIN_FRAMES = PACES["balanced"].min_frames


def running(num_made: int, num_wanted: int = 1) -> Utterance:
    """An utterance with `num_made` frames, whose reader waits for `num_wanted` more."""
    one = Utterance(prompt=script(1_000), sampling=SamplingParams(seed=1), wake=lambda: None)
    one.admit(0, 1.0)
    one.make(num_made, "running")
    one.num_read = one.num_rendered = num_made
    one.num_wanted = num_wanted
    return one


def scheduler_of(
    utterances: Sequence[Utterance], step_s: float, num_slots: int = 1_000
) -> Scheduler[Utterance]:
    return Scheduler(
        EngineLimits(),
        num_slots,
        step_s=step_s,
        running=[*utterances],
        _active=[*utterances],
    )


def num_frames(*utterances: Utterance, step_s: float) -> int:
    return scheduler_of(utterances, step_s).plan().num_frames


OLD = [running(20, 8) for _ in range(MAX_SILENT_BATCH)]


@pytest.mark.parametrize(
    ("step_s", "expected"), [(0.0, 8), (0.99 * MAX_TURN_S / 8, 8), (1.01 * MAX_TURN_S / 8, 4)]
)
def test_turn_of_few_utterances_ends_soon(step_s: float, expected: int) -> None:
    assert num_frames(*OLD, step_s=step_s) == expected


def test_turn_of_many_utterances_is_as_long_as_their_requests() -> None:
    assert num_frames(*OLD, running(20, 8), step_s=1.0) == 8


def test_turn_is_as_long_as_the_requests_while_no_slot_is_free() -> None:
    assert scheduler_of(OLD[:4], 1.0, num_slots=4).plan().num_frames == 8
    assert scheduler_of(OLD[:4], 1.0, num_slots=5).plan().num_frames == MIN_FRAMES


def test_reader_of_whole_turns_keeps_them() -> None:
    whole = PACES["balanced"].max_frames
    assert num_frames(running(20, whole), step_s=1.0) == whole
    assert num_frames(running(20, whole), running(20, whole), step_s=1.0) == MIN_FRAMES


def test_first_chunk_is_made_in_one_turn() -> None:
    assert num_frames(running(0, 8), step_s=1.0) == 8
