"""Frame budgets and the stall detector."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivace.backends.base import frame_loudness
from vivace.engine.utterances.guard import (
    MIN_BUDGET,
    SILENCE,
    STALL_FRAMES,
    SoundState,
    StallDetector,
    frame_budget,
)

LOUD = np.full(1920, 0.1, dtype=np.float32)
QUIET = np.full(1920, 1e-4, dtype=np.float32)


def feed(detector: StallDetector, first_codes: list[int], sound: np.ndarray = LOUD) -> int:
    codes = np.array([[code, 7, 7] for code in first_codes])
    levels = frame_loudness(np.tile(sound, len(codes)), len(codes))
    return detector.observe(codes, levels.tolist())


def test_frame_budget_grows_with_the_text() -> None:
    assert frame_budget(1) == MIN_BUDGET
    assert frame_budget(100) == 1200  # 96 s; 100 tokens usually take 30 s
    assert frame_budget(200) > frame_budget(100)


def test_normal_speech_is_not_a_stall() -> None:
    detector = StallDetector()
    codes = np.random.default_rng(1).integers(0, 2048, 400).tolist()
    assert not any(feed(detector, [code]) for code in codes)


@pytest.mark.parametrize("cycle", [[5], [5, 6], [5, 6, 7], [5, 6, 7, 8]])
def test_repeated_code_cycle_is_a_stall(cycle: list[int]) -> None:
    detector = StallDetector()
    assert feed(detector, list(range(100, 130))) == 0
    found = [feed(detector, [code]) for code in cycle * (STALL_FRAMES + 1)]
    assert found[STALL_FRAMES - 2] == 0
    first = next(index for index, stalled in enumerate(found) if stalled)
    assert STALL_FRAMES <= found[first] <= first + 1


def test_cycle_above_the_maximum_is_not_a_stall() -> None:
    detector = StallDetector()
    assert not any(feed(detector, [code]) for code in [1, 2, 3, 4, 5, 6, 7] * 20)


def test_silence_with_any_codes_is_a_stall() -> None:
    detector = StallDetector()
    codes = np.random.default_rng(2).integers(0, 2048, 100).tolist()
    found = [feed(detector, [code], QUIET) for code in codes]
    assert found[STALL_FRAMES - 2] == 0
    assert found[STALL_FRAMES - 1] == STALL_FRAMES


def test_pause_of_two_seconds_is_not_a_stall() -> None:
    detector = StallDetector()
    assert feed(detector, list(range(25)), QUIET) == 0
    assert feed(detector, [99], LOUD) == 0
    assert feed(detector, list(range(25)), QUIET) == 0


@given(sizes=st.lists(st.integers(1, 20), min_size=1, max_size=12))
def test_stall_detection_does_not_depend_on_chunk_sizes(sizes: list[int]) -> None:
    codes = [*range(30), *[4] * 60]
    one, many = StallDetector(), StallDetector()
    expected = [feed(one, [code]) for code in codes]
    position = 0
    for size in sizes:
        piece = codes[position : position + size]
        if not piece:
            break
        position += len(piece)
        assert feed(many, piece) == expected[position - 1]


def test_stall_of_dropped_frames_is_not_counted_after_a_restart() -> None:
    state, num_frames = SoundState(), STALL_FRAMES - 1
    codes = np.arange(3 * num_frames).reshape(num_frames, 3)
    silent = [SILENCE / 2] * num_frames
    state.find_stall(codes, silent)
    state.restart_stall()
    assert not state.find_stall(codes, silent)
    assert state.find_stall(codes + codes.size, silent)
