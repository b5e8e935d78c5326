"""Maps spoken text back to the words of the caller's text.

The stages of the text pipeline drop marks and write words out. The stages that replace words report
each replacement to a `Trace`. A trace exists only if word timings are requested.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vivace.text.pauses import PAUSE_MARK
from vivace.text.scripts import HAN_AND_KANA
from vivace.text.spelling import MARK as SPELLING_MARK

NO_WORD = -1
_UNIT = re.compile(rf"[{HAN_AND_KANA}][^\w\s]*|[^\s{HAN_AND_KANA}]+")
# Text that is not spoken: pauses, the names of spelling marks, and link targets.
_NO_WORDS = re.compile(rf"{PAUSE_MARK.pattern}|\[(?:spell|digits):|\]\([^()\s]*\)", re.IGNORECASE)
_REACH = 4096  # characters searched ahead
_HAN_OR_KANA = re.compile(f"[{HAN_AND_KANA}]")


def find_words(text: str) -> list[tuple[int, int]]:
    """Start and end of each word; in Chinese and Japanese every character is a word."""
    units = _UNIT.finditer(text)
    return [one.span() for one in units if any(map(str.isalnum, one[0]))]


class _OwnedText:
    """A queue of characters without white space, each with the number of its word."""

    def __init__(self) -> None:
        self._queue: deque[tuple[str, int]] = deque()

    def add(self, text: str, owners: Sequence[int]) -> None:
        pairs = zip(text, owners, strict=True)
        self._queue.extend(pair for pair in pairs if not pair[0].isspace())

    def take(self, text: str) -> list[int]:
        """The word of each character of the next text."""
        return [NO_WORD if c.isspace() else self._queue.popleft()[1] for c in text]

    def take_letter(self) -> int:
        """The word of the next letter or digit; NO_WORD at the end."""
        while self._queue:
            character, owner = self._queue.popleft()
            if character.isalnum():
                return owner
        return NO_WORD


@dataclass(frozen=True, slots=True)
class WrittenWord:
    """A word and its place in the caller's text."""

    text: str
    start: int
    end: int


class Trace:
    """The trace of one text.

    `give` receives the caller's text; `read`, `say` and `respell` receive the replacements of the
    stages in order; `take` returns the words of spoken text.
    """

    def __init__(self, count_words: Callable[[str], int] | None = None) -> None:
        """`count_words` returns how many spoken words a written word becomes on its own."""
        self._count_words = count_words or (lambda word: len(word.split()))
        self._texts: list[str] = []  # the written words
        self._places: list[tuple[int, int]] = []  # of the words that `word` was asked for
        self._is_open = False  # the last word may continue
        self._given = ""  # the caller's text, with marks blanked
        self._given_from = 0  # where the search for the next word begins
        self._read, self._said = _OwnedText(), _OwnedText()
        self._respelled: _OwnedText | None = None  # after `respell`, the spoken text

    def give(self, text: str) -> None:
        """Add more of the caller's text."""
        ahead = self._given[self._given_from :] + text
        self._given = self._given[: self._given_from] + _NO_WORDS.sub(_blank, ahead)

    def break_word(self) -> None:
        """The next text begins another word."""
        self._is_open = False

    def read(self, written: str, respelled: str) -> None:
        """Record a piece of the text without pauses and its lexicon respelling."""
        mark = SPELLING_MARK.fullmatch(written) if respelled != written else None
        self._read.add(respelled, self._share(self._own(mark[2] if mark else written), respelled))
        self._is_open = self._is_open and not mark

    def say(self, read: str, said: str) -> None:
        """Record a piece of the respelled text and its normalized words."""
        self._pass_on(self._read, read, self._said, said)

    def respell(self, said: str, spoken: str) -> None:
        """Record a piece of the normalized text and its respelling for the voice."""
        self._respelled = self._respelled or _OwnedText()
        self._pass_on(self._said, said, self._respelled, spoken)

    def _pass_on(self, source: _OwnedText, old: str, target: _OwnedText, new: str) -> None:
        owners = source.take(old)
        units = [(unit[0], owners[unit.start()]) for unit in _UNIT.finditer(old)]
        target.add(new, owners if old == new else self._share(units, new))

    def take(self, text: str) -> list[int]:
        """The word of each letter and digit of the next spoken text.

        After the last replacement, stages change only white space and signs.
        """
        spoken = self._respelled or self._said
        return [spoken.take_letter() for character in text if character.isalnum()]

    def word(self, number: int) -> WrittenWord:
        """The word with this number and its place in the caller's text."""
        while len(self._places) <= number:
            self._places.append(self._locate(self._texts[len(self._places)]))
        return WrittenWord(self._texts[number], *self._places[number])

    def _own(self, written: str) -> list[tuple[str, int]]:
        """The words of a written piece and their numbers; new words are added."""
        units = []
        for unit in _UNIT.finditer(written):
            if self._is_open and unit.start() == 0:
                self._texts[-1] += unit[0]
            else:
                self._texts.append(unit[0])
            units.append((unit[0], len(self._texts) - 1))
        if written:
            self._is_open = not written[-1].isspace() and not _HAN_OR_KANA.match(written[-1])
        return units

    def _share(self, units: Sequence[tuple[str, int]], said: str) -> list[int]:
        """The written word of each spoken character, in proportion to `count_words`."""
        words = list(_UNIT.finditer(said))
        owners = [NO_WORD] * len(said)
        if not units or not words:
            return owners
        shares = [1] * len(units)
        if len(units) not in (1, len(words)):
            shares = [max(1, self._count_words(text)) for text, _ in units]
        ends = [end * len(words) / sum(shares) for end in itertools.accumulate(shares)]
        for index, word in enumerate(words):
            owner = units[bisect.bisect_left(ends, index + 0.5)][1]
            owners[word.start() : word.end()] = [owner] * len(word[0])
        return owners

    def _locate(self, word: str) -> tuple[int, int]:
        """The next place of a word, which is then passed; an empty span if cleaning changed it."""
        start = self._given_from - 1
        while (start := self._find(word, start + 1)) > 0:
            is_inside = self._given[start - 1].isalnum() and word[0].isalnum()
            if not is_inside or _HAN_OR_KANA.match(word):
                break
        if start < 0:
            return self._given_from, self._given_from
        self._given_from = start + len(word)
        return start, self._given_from

    def _find(self, word: str, start: int) -> int:
        return self._given.find(word, start, self._given_from + _REACH)


def _blank(mark: re.Match[str]) -> str:
    return " " * len(mark[0])
