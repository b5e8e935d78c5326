"""Character times derived from word times, in the two formats of ElevenLabs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

from vivace.speech import Word

_TAIL = re.compile(r"[^\w\s]*\s")  # text after a word that shows clients that the word is complete


class Aligner:
    """Assigns times to the characters of one text, which may still grow.

    The duration of a word, or of the gap between words, is divided evenly among its characters.
    """

    def __init__(self, start_s: float = 0.0) -> None:
        """`start_s`: where the text begins in the audio, if other texts come before it."""
        self._start_s = self._end_s = start_s
        self._num_chars = 0  # that have a time

    def take(
        self, text: str, words: Sequence[Word], *, is_last: bool = False
    ) -> tuple[str, list[float]]:
        """The characters up to the end of `words`, and their boundaries in seconds.

        There is one boundary more than characters. `is_last` adds the rest of the text.
        """
        first, edges = self._num_chars, [self._end_s]
        for word in words:
            start_s, end_s = self._start_s + word.start_s, self._start_s + word.end_s
            self._share(edges, start_s, word.start_char)
            edges[-1] = start_s  # the word's first character starts with the word
            self._share(edges, end_s, word.end_char)
        if words and (tail := _TAIL.match(text, self._num_chars)):
            self._share(edges, edges[-1], tail.end())
        if is_last:
            self._share(edges, edges[-1], len(text))
        self._end_s = edges[-1]
        return text[first : self._num_chars], edges

    def _share(self, edges: list[float], end_s: float, end_char: int) -> None:
        count, start_s = end_char - self._num_chars, edges[-1]
        edges += [start_s + (end_s - start_s) * n / count for n in range(1, count + 1)]
        self._num_chars = max(self._num_chars, end_char)


def as_seconds(chars: str, edges: Sequence[float]) -> dict[str, list[Any]]:
    """The HTTP format: seconds from the start of the audio."""
    times = [round(edge, 3) for edge in edges]
    return {
        "characters": list(chars),
        "character_start_times_seconds": times[:-1],
        "character_end_times_seconds": times[1:],
    }


def as_milliseconds(chars: str, edges: Sequence[float], origin_ms: int) -> dict[str, list[Any]]:
    """The WebSocket format: milliseconds from `origin_ms` of the audio."""
    times = [round(1000 * edge) - origin_ms for edge in edges]
    return {
        "chars": list(chars),
        "charStartTimesMs": times[:-1],
        "charDurationsMs": [end - start for start, end in itertools.pairwise(times)],
    }
