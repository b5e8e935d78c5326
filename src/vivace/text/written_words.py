"""The words of the caller's text, and the words that spoken text stands for."""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass

from vivace.text.scripts import HAN_AND_KANA
from vivace.text.spans import UNIT, Span, SpannedText

NO_WORD = -1
_HAN_OR_KANA = re.compile(f"[{HAN_AND_KANA}]")
_MORE_SIGNS = re.compile(r"[^\w\s]+")  # continues a word of one Chinese or Japanese character
_MORE = re.compile(rf"[^\s{HAN_AND_KANA}]+")  # continues any other word


def find_words(text: str) -> list[Span]:
    """Start and end of each word; in Chinese and Japanese every character is a word."""
    units = UNIT.finditer(text)
    return [one.span() for one in units if any(map(str.isalnum, one[0]))]


@dataclass(frozen=True, slots=True)
class WrittenWord:
    """A word and its place in the caller's text."""

    text: str
    start: int
    end: int


class WrittenWords:
    """The words of a text in pieces, in order. Signs without letters count as words."""

    def __init__(self) -> None:
        self._words: list[str] = []
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._is_open = False  # the last word may continue

    def add(self, text: str) -> None:
        """Add the next `SpannedText`, before its words are rewritten. Other text has no words."""
        if not isinstance(text, SpannedText) or not text:
            return
        place = self._extend_last(text) if self._is_open else 0
        for unit in UNIT.finditer(text, place):
            self._words.append(unit[0])
            self._starts.append(text.spans[unit.start()][0])
            self._ends.append(text.spans[unit.end() - 1][1])
        self._is_open = not text[-1].isspace()

    def _extend_last(self, text: SpannedText) -> int:
        """Add the beginning of a text to the last word; return the end of that beginning."""
        is_han = _HAN_OR_KANA.match(self._words[-1])
        more = (_MORE_SIGNS if is_han else _MORE).match(text)
        if not more:
            return 0
        self._words[-1] += more[0]
        self._ends[-1] = text.spans[more.end() - 1][1]
        return more.end()

    def end_word(self) -> None:
        """The next text begins another word."""
        self._is_open = False

    def __getitem__(self, number: int) -> WrittenWord:
        return WrittenWord(self._words[number], self._starts[number], self._ends[number])

    def numbers(self, spoken: str) -> list[int]:
        """The number of the word of each character; NO_WORD in a text without spans."""
        if not isinstance(spoken, SpannedText):
            return [NO_WORD] * len(spoken)
        return [bisect.bisect_right(self._starts, start) - 1 for start, _ in spoken.spans]
