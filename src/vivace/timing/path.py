"""Which text id each frame says: the best monotonic path through an attention head's weights.

Plain numpy; decided a few frames late and never changed, so pieces of any size give one result.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

LAG = 4  # frames after which a frame's place is certain
MAX_STEP = 4  # ids from one frame to the next
FLOOR = 1e-3  # attention that any id has
EDGE = 2  # frames before and after a change that say where in a frame it lies
FAINT = 0.05  # attention to the text below which a frame says little

Weights = NDArray[np.float32]


class TextPath:
    def __init__(self) -> None:
        self.places: list[int] = []  # the id of each frame that is decided; never falls
        self.is_finished = False
        self._weights: list[Weights] = []  # of all frames: [ids]
        self._scores = np.zeros(0)
        self._origins: deque[NDArray[np.int64]] = deque(maxlen=LAG)

    @property
    def num_frames(self) -> int:
        """Decided or not."""
        return len(self._weights)

    def step(self, weights: Weights) -> None:
        """One more frame, with its attention to every id so far: [ids]; they may become more."""
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
        """No more frames."""
        self.is_finished = True
        num_left = len(self._weights) - len(self.places)
        self._decide(self._trace()[-num_left:] if num_left else [])

    def _trace(self) -> list[int]:
        """The best places of the last frames, `LAG` before now first."""
        places = [int(self._scores.argmax())]
        for origins in reversed(self._origins):
            places.append(int(origins[places[-1]]))
        return places[::-1]

    def _decide(self, places: list[int]) -> None:
        for place in places:
            self.places.append(max(place, self.places[-1] if self.places else 0))

    def time_of(self, position: float) -> float:
        """When the path comes to a place between ids, in frames; at the end if it never does."""
        column = int(position)
        begin = self._edge(column)
        if position == column:
            return begin
        return begin + (position - column) * (self._edge(column + 1) - begin)

    def _edge(self, column: int) -> float:
        """The first frame at this id or after, moved by how much its neighbours attend there."""
        frame = int(np.searchsorted(self.places, column))
        first, end = max(0, frame - EDGE), min(len(self._weights), frame + EDGE)
        edge = float(first)
        for index in range(first, end):
            weights = self._weights[index]
            hard = FAINT * (index < frame)
            edge += float(weights[:column].sum() + hard) / float(weights.sum() + FAINT)
        return edge
