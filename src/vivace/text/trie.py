"""A character tree of lexicon words, and the rules for word boundaries in a text."""

from __future__ import annotations

import unicodedata
from enum import Enum, auto
from functools import lru_cache
from typing import Any

from vivace.text.scripts import WITHOUT_SPACES

Node = dict[str, Any]  # the next characters; under "" the respelling of the word so far
END = ""


class Trie:
    """Words with a capital match exactly; other words match in any case."""

    def __init__(self) -> None:
        self.exact: Node = {}
        self.folded: Node = {}
        self.firsts: set[str] = set()  # every possible first character
        self.num_words = 0

    def add(self, word: str, respelling: str) -> None:
        is_folded = word == word.lower()
        for form in {word, *(unicodedata.normalize(kind, word) for kind in ("NFC", "NFD"))}:
            node = self.folded if is_folded else self.exact
            for character in plain_apostrophes(form):
                node = node.setdefault(fold(character) if is_folded else character, {})
            node[END] = respelling
            first = form[0]
            self.firsts |= {first, first.upper()[:1], first.title()[:1]} if is_folded else {first}
        self.num_words += 1


def plain_apostrophes(text: str) -> str:
    return text.replace("’", "'")


@lru_cache(maxsize=4096)
def fold(character: str) -> str:
    """The lower-case letter, if that is a single character."""
    for folded in (character.casefold(), character.lower()):
        if len(folded) == 1:
            return folded
    return character


class Kind(Enum):
    """How a character relates to the words around it."""

    WORD = auto()  # script with spaces between words
    FREE = auto()  # script without spaces: a word may begin and end anywhere
    HANGUL = auto()  # spaces between words; particles follow words directly
    MARK = auto()  # combines with the character before it
    OTHER = auto()


_JOINERS = "\u200c\u200d"
_APOSTROPHES = "'’"
_IN_NUMBERS = ",:"
ENDINGS = {"t", "s", "d", "m", "ll", "re", "ve"}  # letters after an English apostrophe


@lru_cache(maxsize=4096)
def kind_of(character: str) -> Kind:
    category = unicodedata.category(character)
    if category[0] == "M" or character in _JOINERS:
        return Kind.MARK
    if category[0] not in "LN" and character != "_":
        return Kind.OTHER
    script = unicodedata.name(unicodedata.normalize("NFKC", character)[0], "").split(" ")[0]
    if script in WITHOUT_SPACES:
        return Kind.FREE
    return Kind.HANGUL if script == "HANGUL" else Kind.WORD


def _are_joined(before: Kind, after: Kind) -> bool:
    """Whether two neighbouring characters belong to one word."""
    if after is Kind.MARK:
        return True
    if after is Kind.WORD:
        return before in (Kind.WORD, Kind.MARK)
    return before is after is Kind.HANGUL


def begins_word(text: str, start: int) -> bool:
    """Whether a word may begin at `start`; depends on the two characters before."""
    if start == 0:
        return True
    before, first = text[start - 1], text[start]
    if _are_joined(kind_of(before), kind_of(first)):
        return False
    if first == ".":
        return kind_of(before) is not Kind.WORD
    return not (start > 1 and _is_inside(text[start - 2], before, first))


def _is_inside(before: str, sign: str, after: str) -> bool:
    """Whether a sign is part of a word or number, as in "node.js" and "5:30"."""
    if sign == ".":
        return kind_of(before) is kind_of(after) is Kind.WORD
    return sign in _IN_NUMBERS and before.isdecimal() and after.isdecimal()


def ends_word(text: str, start: int, end: int, *, is_final: bool) -> bool | None:
    """Whether the word from `start` ends at `end`; None if more text must arrive."""
    if is_contraction(text, start, end):
        return False
    after = text[end : end + 3]
    if not after:
        return True if is_final else None
    last, follows = kind_of(text[end - 1]), kind_of(after[0])
    if _are_joined(last, follows):
        return last is follows is Kind.HANGUL
    if after[0] in _APOSTROPHES and last is Kind.WORD:
        return _ends_before_apostrophe(after, is_final=is_final)
    if text[end - 1] == ".":
        return follows is not Kind.WORD
    if (after[0] == "." and last is Kind.WORD) or after[0] in _IN_NUMBERS:
        if len(after) > 1:
            return not _is_inside(text[end - 1], after[0], after[1])
        return True if is_final else None
    return True


def is_contraction(text: str, start: int, end: int) -> bool:
    """Whether the span is the end of a contraction such as "don't"."""
    is_after = start > 1 and text[start - 1] in _APOSTROPHES
    return (
        is_after
        and kind_of(text[start - 2]) is Kind.WORD
        and end - start < 3
        and text[start:end].lower() in ENDINGS
    )


def _ends_before_apostrophe(after: str, *, is_final: bool) -> bool | None:
    """Whether a word ends before an apostrophe: before "'s" or a quotation mark."""
    if len(after) == 1:
        return True if is_final else None
    if kind_of(after[1]) is not Kind.WORD:
        return True
    if after[1] not in "sS":
        return False
    if len(after) == 2:
        return True if is_final else None
    return kind_of(after[2]) is Kind.OTHER
