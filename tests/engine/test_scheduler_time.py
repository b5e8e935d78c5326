"""Lengths of a GPU's turns that depend on the measured time of a frame."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.scripted_backend import script
from vivace.engine.scheduler import (
    FRAME_S,
    MAX_BATCH,
    MAX_PLAYED,
    MAX_SILENT_BATCH,
    MAX_TURN_S,
    PACES,
    EngineLimits,
    Scheduler,
)
from vivace.engine.utterance import Utterance
from vivace.speech import SamplingParams

MIN_FRAMES = PACES["balanced"].min_frames
SLOWEST = MAX_PLAYED * FRAME_S / MIN_FRAMES  # seconds of a frame, after one frame was made


def running(num_made: int, num_wanted: int = 1, num_rendered: int | None = None) -> Utterance:
    """An utterance with `num_made` frames, whose reader waits for `num_wanted` more."""
    one = Utterance(prompt=script(1_000), sampling=SamplingParams(seed=1), wake=lambda: None)
    one.admit(0, 1.0)
    one.make(num_made, "running")
    one.num_read = one.num_rendered = num_made if num_rendered is None else num_rendered
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
    ("num_made", "step_s", "expected"),
    [
        (1, 0.0, 1),  # not measured
        (1, 0.99 * SLOWEST, MIN_FRAMES),
        (1, 1.01 * SLOWEST, 1),
        (2, 1.99 * SLOWEST, MIN_FRAMES),
        (2, 2.01 * SLOWEST, 2),
        (MIN_FRAMES, 100.0, MIN_FRAMES),
    ],
)
def test_turn_has_its_usual_length_if_playback_lasts_longer(
    num_made: int, step_s: float, expected: int
) -> None:
    assert num_frames(*OLD, running(num_made), step_s=step_s) == expected


def test_turn_for_first_audio_stays_short() -> None:
    assert num_frames(*OLD, running(1), running(0), step_s=1e-4) == 1


def test_first_audio_that_is_rendered_does_not_shorten_the_turn() -> None:
    new = running(1, 0, num_rendered=0)
    assert num_frames(*OLD, new, step_s=1e-4) == MIN_FRAMES
    assert num_frames(*OLD, new, step_s=1.0) == 1


def test_turn_of_many_is_not_longer_than_usual_for_one_that_begins() -> None:
    assert num_frames(*OLD, running(1, 0), step_s=1e-4) == MIN_FRAMES < 8


def test_utterances_that_all_begin_have_short_turns() -> None:
    """Their turns have the lengths of their chunks, which a GPU runs fastest."""
    assert num_frames(*[running(1, 2) for _ in range(64)], step_s=1e-4) == 2


def test_few_utterances_have_short_turns_while_one_begins() -> None:
    assert num_frames(*OLD[1:], running(1), step_s=1e-4) == 1


def test_turns_of_utterances_that_take_turns_stay_short() -> None:
    old = [running(20, 8) for _ in range(MAX_BATCH)]
    assert num_frames(*old, running(1), step_s=1e-4) == 1


# -- longer turns ---------------------------------------------------------------------------------


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
