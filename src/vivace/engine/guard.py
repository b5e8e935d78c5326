"""Runaway protection: how long a text may take, and when a voice has got stuck.

About one request in three hundred never draws its end of speech and goes on for minutes, in
near-silence or repeating itself. Plain numbers; it has never heard of backends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LONGEST_READING = 8  # frames per text id, read as slowly as is plausible
PATIENCE = 1.5
MIN_BUDGET = 192  # frames: short texts vary most

STALL_FRAMES = 38  # three seconds; no pause inside speech is as long
LONGEST_CYCLE = 4  # frames that repeat in turn
SILENCE = 1e-3  # loudness of a frame, -60 dBFS


def frame_budget(num_text_ids: int) -> int:
    """The most frames a text of that length is given."""
    return max(MIN_BUDGET, round(PATIENCE * LONGEST_READING * num_text_ids))


class StallDetector:
    """Watches the frames that come after the last of the text was fed."""

    def __init__(self) -> None:
        self._last: deque[int] = deque(maxlen=LONGEST_CYCLE)  # newest first
        self._num_repeated = [0] * LONGEST_CYCLE  # frames that repeat with period 1, 2, ...
        self._has_repeats = False  # one of `_num_repeated` is not 0
        self._num_silent = 0

    def observe(self, codes: NDArray[np.int64], levels: Sequence[float]) -> int:
        """How many of the last frames seen are a stall; 0 while speech goes on."""
        for code, level in zip(codes[:, 0].tolist(), levels, strict=True):
            if self._has_repeats or code in self._last:
                self._count_repeats(code)
            self._last.appendleft(code)
            self._num_silent = self._num_silent + 1 if level < SILENCE else 0
        stalled = max(self._num_silent, *self._num_repeated)
        return stalled if stalled >= STALL_FRAMES else 0

    def _count_repeats(self, code: int) -> None:
        for index, earlier in enumerate(self._last):
            self._num_repeated[index] = self._num_repeated[index] + 1 if earlier == code else 0
        self._has_repeats = any(self._num_repeated)
