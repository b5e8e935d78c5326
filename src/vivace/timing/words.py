"""When each word of an utterance is heard: the path through its ids, and its sound at pauses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vivace.timing.path import TextPath, Weights

WINDOWS = 8  # of a frame, each with a level of its own
QUIET = 10 ** (-30 / 20)  # of a word's loudest window
PAUSE = 12  # quiet windows that no word has inside, 120 ms
DELAY = 2  # windows by which sound is behind attention, as measured on the embedded voice
REACH = 20  # windows after the path has gone on to the next word in which a pause may still begin

Samples = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Span:
    """A word in an utterance's ids, in parts of an id: from `begin` to `end`."""

    word: int
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Heard:
    """A word and when it is heard, in frames from the utterance's first."""

    word: int
    start: float
    end: float


class WordTimer:
    """Frames in, words out as soon as the next one has begun; `spans` may grow meanwhile."""

    def __init__(self) -> None:
        self.spans: Sequence[Span] = ()
        self._path = TextPath()
        self._levels: list[float] = []  # of each window
        self._num_heard = 0
        self._is_after_pause = True
        self._next = 0  # the window after the last word

    def feed(self, weights: Weights, samples: Samples) -> list[Heard]:
        """The attention of some frames, [n, ids], and their samples; the words that are over."""
        if len(weights):
            windows = samples[: len(samples) // (len(weights) * WINDOWS) * len(weights) * WINDOWS]
            squares = np.square(windows.reshape(len(weights) * WINDOWS, -1), dtype=np.float64)
            self._levels += np.sqrt(squares.mean(1)).tolist()
        heard = []
        for row in weights:
            self._path.step(row)
            heard += self._take(is_final=False)
        return heard

    def finish(self) -> list[Heard]:
        """The rest; words that were never begun are left out."""
        self._path.finish()
        return self._take(is_final=True)

    def _take(self, *, is_final: bool) -> list[Heard]:
        heard, places = [], self._path.places
        while self._num_heard < len(self.spans) and places:
            span = self.spans[self._num_heard]
            following = next(iter(self.spans[self._num_heard + 1 :]), None)
            is_over = following is not None and places[-1] >= math.ceil(following.begin)
            if not is_over and not (is_final and places[-1] >= int(span.begin)):
                break
            heard.append(self._hear(span, following))
            self._num_heard += 1
        return heard

    def _hear(self, span: Span, following: Span | None) -> Heard:
        """The path says about where a word ends; a pause near there says exactly."""
        first, end = self._next, self._window_of(span.end)
        last = len(self._levels) if following is None else self._window_of(following.begin)
        if self._is_after_pause:
            first = max(first, self._window_of(span.begin) - WINDOWS)
        loud = QUIET * max(self._levels[first : max(first + 1, end)], default=0.0)
        start = self._next_sound(first, end, loud) if self._is_after_pause else first
        pause = self._find_pause(max(start + 1, end - WINDOWS), last + REACH, loud)
        self._is_after_pause = pause is not None
        self._next = max(start + 1, last if pause is None else pause)
        return Heard(span.word, start / WINDOWS, self._next / WINDOWS)

    def _window_of(self, position: float) -> int:
        return min(round(self._path.time_of(position) * WINDOWS) + DELAY, len(self._levels))

    def _next_sound(self, first: int, end: int, loud: float) -> int:
        heard = (n for n in range(first, end) if self._levels[n] > loud)
        return next(heard, first)

    def _find_pause(self, first: int, last: int, loud: float) -> int | None:
        """The first window of a pause that begins between these two; also at the end of all."""
        num_known = min(len(self._levels), WINDOWS * self._path.num_frames)
        quiet = None
        for window in range(first, min(last + PAUSE, num_known)):
            if self._levels[window] > loud:
                quiet = None
            elif quiet is None:
                if window > last:
                    return None
                quiet = window
            elif window - quiet >= PAUSE:
                return quiet
        return quiet if self._path.is_finished else None
