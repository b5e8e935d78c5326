"""Frames of several steps and of several batches as one result."""

from __future__ import annotations

import numpy as np
import pytest

from vivace.backends.base import Frames, Places, SlotStatus

NUM_GROUPS = 2


def frames(
    lengths: tuple[int, ...], first: int, *, status: SlotStatus = "running", has_places: bool = True
) -> Frames:
    """Frames whose codes and places name their slot and number; entries after the end are -1."""
    codes = np.full((len(lengths), max(lengths), NUM_GROUPS), -1)
    places: list[Places] = []
    for slot, length in enumerate(lengths):
        numbers = np.arange(first, first + length)
        codes[slot, :length] = 100 * slot + numbers[:, None]
        places.append([(100 * slot + int(number), 0.5) for number in numbers])
    made = tuple(places) if has_places else None
    return Frames(codes, lengths, (status,) * len(lengths), made)


@pytest.mark.parametrize(
    ("first", "second"), [((4, 4), (4, 4)), ((4, 4), (2, 0)), ((4, 1), (3, 0)), ((2, 0), (0, 0))]
)
def test_join_has_the_frames_of_each_slot_in_order(
    first: tuple[int, int], second: tuple[int, int]
) -> None:
    steps = [frames(first, 0), frames(second, first[0], status="stop")]
    joined = Frames.join(steps)
    assert joined.lengths == (first[0] + second[0], first[1] + second[1])
    assert joined.status == ("stop", "stop")
    for row in range(2):
        expected = np.concatenate([step.of(row) for step in steps])
        np.testing.assert_array_equal(joined.of(row), expected)
        assert [place for place, _ in joined.places_of(row)] == expected[:, 0].tolist()


@pytest.mark.parametrize("lengths", [(4, 4), (4, 2)])
def test_join_of_steps_before_and_after_a_head_is_watched(lengths: tuple[int, int]) -> None:
    joined = Frames.join([frames(lengths, 0, has_places=False), frames((1, 1), 4)])
    assert joined.lengths == (lengths[0] + 1, lengths[1] + 1)
    assert joined.places_of(1) == [(104, 0.5)]


def test_join_of_one_step_is_the_step() -> None:
    step = frames((3, 1), 0)
    assert Frames.join([step]) is step


def test_parts_of_different_lengths_are_stacked_by_slot() -> None:
    stacked = Frames.stack_parts([frames((1, 2), 0), frames((3,), 5)], NUM_GROUPS)
    assert stacked.lengths == (1, 2, 3)
    assert stacked.of(1).tolist() == [[100, 100], [101, 101]]
    assert stacked.of(2).tolist() == [[5, 5], [6, 6], [7, 7]]
    assert stacked.places_of(2) == [(5, 0.5), (6, 0.5), (7, 0.5)]


def test_no_parts_are_no_frames() -> None:
    assert Frames.stack_parts([], NUM_GROUPS).codes.shape == (0, 0, NUM_GROUPS)
