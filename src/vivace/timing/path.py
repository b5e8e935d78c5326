"""The text id that each frame speaks: the best monotonic path through attention weights.

A frame is decided `LAG` frames later and then never changes, so the result does not depend on how
the frames arrive.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

LAG = 4  # frames until the place of a frame is decided
MAX_STEP = 4  # ids from one frame to the next
FLOOR = 1e-3  # smallest attention to an id
EDGE = 2  # frames before and after a change that locate it inside a frame
FAINT = 0.05  # attention to the text below which a frame is uncertain

Weights = NDArray[np.float32]


class TextPath:
    """The path of one utterance, frame by frame."""

    def __init__(self) -> None:
        self.places: list[int] = []  # the id of each decided frame; never decreases
        self.is_finished = False
        self._weights: list[Weights] = []  # of all frames: [ids]
        self._scores = np.zeros(0)
        self._origins: deque[NDArray[np.int64]] = deque(maxlen=LAG)

    @property
    def num_frames(self) -> int:
        """All frames, decided or not."""
        return len(self._weights)

    def step(self, weights: Weights) -> None:
        """Add a frame with its attention to all known ids: [ids]. Ids may be added later."""
        places, options = np.arange(len(weights)), np.full((MAX_STEP + 1, len(weights)), -np.inf)
        if not self._weights:
            options[0, : MAX_STEP + 1] = 0.0
        for jump in range(min(MAX_STEP + 1, len(weights))):
            before = self._scores[: len(weights) - jump]
            options[jump, jump : jump + len(before)] = before
        jumps = options.argmax(0)
        self._origins.append(places - jumps)
        self._scores = options[jumps, places] + np.log(weights + FLOOR)
        self._weights.append(weights)
        if len(self._weights) > LAG:
            self._decide(self._trace()[:1])

    def finish(self) -> None:
        """Decide the remaining frames."""
        self.is_finished = True
        num_left = len(self._weights) - len(self.places)
        self._decide(self._trace()[-num_left:] if num_left else [])

    def _trace(self) -> list[int]:
        """The best places of the last `LAG` + 1 frames, oldest first."""
        places = [int(self._scores.argmax())]
        for origins in reversed(self._origins):
            places.append(int(origins[places[-1]]))
        return places[::-1]

    def _decide(self, places: list[int]) -> None:
        for place in places:
            self.places.append(max(place, self.places[-1] if self.places else 0))

    def time_of(self, position: float) -> float:
        """The time in frames when the path reaches a position in the ids; the end if never."""
        column = int(position)
        begin = self._edge(column)
        if position == column:
            return begin
        return begin + (position - column) * (self._edge(column + 1) - begin)

    def _edge(self, column: int) -> float:
        """The time when the path reaches an id, refined by the attention of nearby frames."""
        frame = int(np.searchsorted(self.places, column))
        first, end = max(0, frame - EDGE), min(len(self._weights), frame + EDGE)
        edge = float(first)
        for index in range(first, end):
            weights = self._weights[index]
            hard = FAINT * (index < frame)
            edge += float(weights[:column].sum() + hard) / float(weights.sum() + FAINT)
        return edge
