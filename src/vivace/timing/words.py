"""Computes the start and end of each word in an utterance.

The path through the text ids gives the approximate time of a word; pauses in the audio correct it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vivace.text.written_words import NO_WORD
from vivace.timing.path import TextPath, Weights

WINDOWS = 8  # windows of 10 ms in a frame
QUIET = 10 ** (-30 / 20)  # level of silence, relative to the loudest window of a word
PAUSE = 12  # quiet windows that do not occur inside a word: 120 ms
DELAY = 2  # windows between attention and audio, measured on the embedded voice
REACH = 20  # windows after the path reaches the next word in which a pause may still begin

Samples = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class IdSpan:
    """The place of a word in the ids of an utterance; fractions are parts of an id."""

    word: int
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class WordSpan:
    """The start and end of a word, in frames from the start of the utterance."""

    word: int
    start: float
    end: float


def find_spans(text: str, numbers: Sequence[int], ids: Sequence[tuple[int, int]]) -> list[IdSpan]:
    """The words of an utterance as spans of its ids.

    `numbers` has the word of each character, `ids` the start and end character of each id. One id
    may contain parts of several words.
    """
    begins: dict[int, float] = {}  # of each character
    ends: dict[int, float] = {}
    for number, (first, end) in enumerate(ids):
        places = [place for place in range(first, end) if text[place].isalnum()]
        for index, place in enumerate(places):
            begins.setdefault(place, number + index / len(places))
            ends[place] = number + (index + 1) / len(places)
    words: dict[int, list[int]] = {}
    for place in begins:
        if numbers[place] != NO_WORD:
            words.setdefault(numbers[place], []).append(place)
    return [
        IdSpan(word, begins[min(places)], ends[max(places)])
        for word, places in sorted(words.items())
    ]


class WordTimer:
    """Returns each word as soon as the next word has begun; `spans` may grow meanwhile."""

    def __init__(self) -> None:
        self.spans: Sequence[IdSpan] = ()
        self._path = TextPath()
        self._levels: list[float] = []  # RMS of each window
        self._num_words = 0  # returned so far
        self._is_after_pause = True
        self._next = 0  # the window after the last word

    def feed(self, weights: Weights, samples: Samples) -> list[WordSpan]:
        """Add the attention [n, ids] and the samples of n frames; return the words that ended."""
        if len(weights):
            windows = samples[: len(samples) // (len(weights) * WINDOWS) * len(weights) * WINDOWS]
            squares = np.square(windows.reshape(len(weights) * WINDOWS, -1), dtype=np.float64)
            self._levels += np.sqrt(squares.mean(1)).tolist()
        words = []
        for row in weights:
            self._path.step(row)
            words += self._take(is_final=False)
        return words

    def finish(self) -> list[WordSpan]:
        """Return the rest; words that the path never reached are left out."""
        self._path.finish()
        return self._take(is_final=True)

    def _take(self, *, is_final: bool) -> list[WordSpan]:
        words, places = [], self._path.places
        while self._num_words < len(self.spans) and places:
            span = self.spans[self._num_words]
            following = next(iter(self.spans[self._num_words + 1 :]), None)
            is_over = following is not None and places[-1] >= math.ceil(following.begin)
            if not is_over and not (is_final and places[-1] >= int(span.begin)):
                break
            words.append(self._place(span, following))
            self._num_words += 1
        return words

    def _place(self, span: IdSpan, following: IdSpan | None) -> WordSpan:
        """Place a word on the path; a pause near its end gives the exact end."""
        first, end = self._next, self._window_of(span.end)
        last = len(self._levels) if following is None else self._window_of(following.begin)
        if self._is_after_pause:
            first = max(first, self._window_of(span.begin) - WINDOWS)
        loud = QUIET * max(self._levels[first : max(first + 1, end)], default=0.0)
        start = self._next_sound(first, end, loud) if self._is_after_pause else first
        pause = self._find_pause(max(start + 1, end - WINDOWS), last + REACH, loud)
        self._is_after_pause = pause is not None
        self._next = max(start + 1, last if pause is None else pause)
        return WordSpan(span.word, start / WINDOWS, self._next / WINDOWS)

    def _window_of(self, position: float) -> int:
        return min(round(self._path.time_of(position) * WINDOWS) + DELAY, len(self._levels))

    def _next_sound(self, first: int, end: int, loud: float) -> int:
        sounds = (n for n in range(first, end) if self._levels[n] > loud)
        return next(sounds, first)

    def _find_pause(self, first: int, last: int, loud: float) -> int | None:
        """The first window of a pause that begins from `first` to `last`."""
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
