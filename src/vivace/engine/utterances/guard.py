"""Runaway protection: limits the frames of a text and detects silence and stalled speech.

About one request in three hundred never draws its end of speech and continues for minutes, silent
or repeating itself. This module works on plain numbers and does not import backends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

FRAMES_PER_ID = 8  # of the slowest plausible speech
BUDGET_MARGIN = 1.5
MIN_BUDGET = 192  # frames; short texts vary most

STALL_FRAMES = 38  # 3 s; pauses inside speech are shorter
LONGEST_CYCLE = 4  # frames
SILENCE = 1e-3  # loudness of a frame, -60 dBFS


@lru_cache(maxsize=1024)  # computed twice in every turn of an utterance
def frame_budget(num_text_ids: int) -> int:
    """The maximum number of frames of a text with `num_text_ids` ids."""
    return max(MIN_BUDGET, round(BUDGET_MARGIN * FRAMES_PER_ID * num_text_ids))


class SoundState:
    """Silence at the start of an utterance, and the stall at its end."""

    __slots__ = ("_stall", "has_begun", "num_silent", "num_stalled")

    def __init__(self) -> None:
        self.has_begun = False  # a frame was not silent
        self.num_silent = 0  # frames before the first sound; 0 afterwards
        self.num_stalled = 0  # silent or repeated frames at the end
        self._stall = StallDetector()

    def observe(self, levels: Sequence[float], num_frames: int) -> None:
        """Note the loudness of the last of `num_frames` frames."""
        self.has_begun = self.has_begun or max(levels, default=0.0) >= SILENCE
        self.num_silent = 0 if self.has_begun else num_frames

    def find_stall(self, codes: NDArray[np.int64], levels: Sequence[float]) -> bool:
        """Whether the last frames are stalled. The whole text was given to the model."""
        if len(codes):
            self.num_stalled = self._stall.observe(codes, levels)
        return self.num_stalled > 0

    def restart_stall(self) -> None:
        """The last frames were dropped."""
        self.num_stalled, self._stall = 0, StallDetector()


class StallDetector:
    """Detects silent or repeated frames after the whole text was given to the model."""

    def __init__(self) -> None:
        self._last: deque[int] = deque(maxlen=LONGEST_CYCLE)  # newest first
        self._num_repeated = [0] * LONGEST_CYCLE  # frames that repeat with period 1, 2, ...
        self._has_repeats = False  # one of `_num_repeated` is not 0
        self._num_silent = 0

    def observe(self, codes: NDArray[np.int64], levels: Sequence[float]) -> int:
        """The length of the stall that the last frames belong to; 0 if there is none."""
        last, num_silent = self._last, self._num_silent
        for code, level in zip(codes[:, 0].tolist(), levels, strict=True):
            if self._has_repeats or code in last:
                self._count_repeats(code)
            last.appendleft(code)
            num_silent = num_silent + 1 if level < SILENCE else 0
        self._num_silent = num_silent
        if not self._has_repeats and num_silent < STALL_FRAMES:
            return 0
        stalled = max(self._num_silent, *self._num_repeated)
        return stalled if stalled >= STALL_FRAMES else 0

    def _count_repeats(self, code: int) -> None:
        for index, earlier in enumerate(self._last):
            self._num_repeated[index] = self._num_repeated[index] + 1 if earlier == code else 0
        self._has_repeats = any(self._num_repeated)
