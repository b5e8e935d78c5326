"""Where the spoken text comes from: the word of the caller's text behind each character.

The stages of reading change a text by dropping marks and by writing words out; the last of them
says here what it made of what. Nothing is traced unless somebody asks for word timings.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vivace.text.markup import PAUSE_MARK
from vivace.text.spelling import MARK as SPELLING_MARK

NO_WORD = -1
_CJK = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # written without spaces
_UNIT = re.compile(rf"[{_CJK}][^\w\s]*|[^\s{_CJK}]+")
# Pauses, the names of marks, and the targets of links, whose texts alone are spoken.
_NO_WORDS = re.compile(rf"{PAUSE_MARK.pattern}|\[(?:spell|digits):|\]\([^()\s]*\)", re.IGNORECASE)
_SOUGHT = 24  # characters by which a place in the spoken text is recognised
_REACH = 4096  # how far ahead a place is sought
_IS_CJK = re.compile(f"[{_CJK}]")


def find_words(text: str) -> list[tuple[int, int]]:
    """Where the words of a text are; Chinese and Japanese have a word for each character."""
    units = _UNIT.finditer(text)
    return [one.span() for one in units if any(map(str.isalnum, one[0]))]


class _Owned:
    """Text, the word of each character, and how far it was used."""

    def __init__(self) -> None:
        self._text, self._from = "", 0
        self._owners: list[int] = []

    def add(self, text: str, owners: Sequence[int]) -> None:
        if self._from > _REACH:
            self._text, self._owners = self._text[self._from :], self._owners[self._from :]
            self._from = 0
        pairs = [(c, owner) for c, owner in zip(text, owners, strict=True) if not c.isspace()]
        self._text += "".join(character for character, _ in pairs)
        self._owners += [owner for _, owner in pairs]

    def is_next(self, character: str) -> bool:
        return self._text[self._from : self._from + 1] == character

    def pop(self) -> int:
        self._from += 1
        return self._owners[self._from - 1]

    def seek(self, text: str) -> bool:
        """Go to where this is next, spaces apart; False if it is nowhere near."""
        place = self._text.find("".join(text.split()), self._from, self._from + _REACH)
        self._from = max(self._from, place)
        return place >= 0 and not text.isspace()

    def take(self, text: str) -> list[int]:
        """The word of each character of the next text."""
        return [NO_WORD if character.isspace() else self.pop() for character in text]


@dataclass(frozen=True, slots=True)
class WrittenWord:
    """A word as it was written, and where in the caller's text."""

    text: str
    start: int
    end: int


class Trace:
    """One text: `give` it, `read` it, `say` it, then `match` what is spoken with its words."""

    def __init__(self, count_words: Callable[[str], int] | None = None) -> None:
        """`count_words` says how many words a written one becomes alone, to share out readings."""
        self._count_words = count_words or (lambda word: len(word.split()))
        self._texts: list[str] = []  # of the written words
        self._places: list[tuple[int, int]] = []  # of those that were asked for
        self._is_open = False  # the last word may go on
        self._given = ""  # the caller's text, without marks
        self._given_from = 0  # where the next word is sought
        self._read, self._said = _Owned(), _Owned()

    def give(self, text: str) -> None:
        """More of the caller's text."""
        ahead = self._given[self._given_from :] + text
        self._given = self._given[: self._given_from] + _NO_WORDS.sub(_blank, ahead)

    def break_word(self) -> None:
        """What is read next does not go on with the last word."""
        self._is_open = False

    def read(self, written: str, respelled: str) -> None:
        """A piece of the text without pauses, and what the lexicon makes of it."""
        mark = SPELLING_MARK.fullmatch(written) if respelled != written else None
        self._read.add(respelled, self._share(self._own(mark[2] if mark else written), respelled))
        self._is_open = self._is_open and not mark

    def say(self, read: str, said: str) -> None:
        """A piece of what was read, and the words that are said for it."""
        owners = self._read.take(read)
        units = [(unit[0], owners[unit.start()]) for unit in _UNIT.finditer(read)]
        self._said.add(said, owners if read == said else self._share(units, said))

    def match(self, text: str, *, is_start: bool) -> list[int]:
        """The word of each character of the next spoken text, which may leave some out."""
        if is_start:
            self._said.seek(text[:_SOUGHT])
        found = []
        for index, character in enumerate(text):
            is_there = self._said.is_next(character)
            if not is_there and character.isalnum():  # other signs may be added to the text
                is_there = self._said.seek(text[index : index + 8])
            found.append(self._said.pop() if is_there and not character.isspace() else NO_WORD)
        return found

    def word(self, number: int) -> WrittenWord:
        """A word by its number, with its place in the caller's text."""
        while len(self._places) <= number:
            self._places.append(self._locate(self._texts[len(self._places)]))
        return WrittenWord(self._texts[number], *self._places[number])

    def _own(self, written: str) -> list[tuple[str, int]]:
        """The words of a written piece and their numbers."""
        units = []
        for unit in _UNIT.finditer(written):
            if self._is_open and unit.start() == 0:
                self._texts[-1] += unit[0]
            else:
                self._texts.append(unit[0])
            units.append((unit[0], len(self._texts) - 1))
        if written:
            self._is_open = not written[-1].isspace() and not _IS_CJK.match(written[-1])
        return units

    def _share(self, units: Sequence[tuple[str, int]], said: str) -> list[int]:
        """Spoken words to the written ones they stand for, by how many each has alone."""
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
        """The next place of a word, which is then passed; empty if cleaning changed the word."""
        start = self._given_from - 1
        while (start := self._find(word, start + 1)) > 0:
            is_inside = self._given[start - 1].isalnum() and word[0].isalnum()
            if not is_inside or _IS_CJK.match(word):
                break
        if start < 0:
            return self._given_from, self._given_from
        self._given_from = start + len(word)
        return start, self._given_from

    def _find(self, word: str, start: int) -> int:
        return self._given.find(word, start, self._given_from + _REACH)


def _blank(mark: re.Match[str]) -> str:
    return " " * len(mark[0])
