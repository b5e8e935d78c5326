"""Checks that a text can be spoken in the checkpoint's languages."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from vivace.errors import TextError
from vivace.text.scripts import DIALECT, LANGUAGE_SCRIPTS, is_letter, scripts_of
from vivace.text.spans import GROUP_1, join, substitute

_SIGNS = frozenset("&%@§°©®™")  # spoken signs besides currency signs
_STOPS = frozenset(",.;:!?")
_GAP_BEFORE_SIGN = re.compile(r"[ ,]+(?=[,.;:!?])")
_LEADING_SIGNS = re.compile(r"\A(\s*)[,.;:!?]+ ?")
_BLANK = frozenset({"Zs", "Zl", "Zp", "Cc", "Cf"})  # white space and control characters


def is_speakable(text: str) -> bool:
    """Whether a text has a letter, a digit or a sign with a spoken name."""
    return any(map(_is_spoken, text))


def check_speakable(text: str) -> None:
    """Raise a TextError if nothing in a text can be spoken."""
    if not is_speakable(text):
        is_blank = all(unicodedata.category(character) in _BLANK for character in text)
        what = "is empty or blank" if is_blank else f"has no words in it: {text.strip()[:40]!r}"
        raise TextError(f"the text {what}; there is nothing to speak")


@lru_cache(maxsize=4096)
def _is_spoken(character: str) -> bool:
    category = unicodedata.category(character)
    # A lone surrogate ("Cs") is rejected later, by `Tidier`.
    return category[0] in "LN" or category in ("Sc", "Cs") or character in _SIGNS


@dataclass(frozen=True, slots=True)
class Letters:
    """The letters of some languages."""

    scripts: frozenset[str]  # names as in Unicode; empty: every letter is allowed

    @classmethod
    def of(cls, languages: Collection[str]) -> Letters:
        """Build from language names; an unknown language allows every letter."""
        scripts: set[str] = set()
        for language in languages:
            name = "chinese" if language.endswith(DIALECT) else language
            if name not in LANGUAGE_SCRIPTS:
                return cls(frozenset())
            scripts.update(LANGUAGE_SCRIPTS[name])
        return cls(frozenset(scripts))

    @property
    def is_strict(self) -> bool:
        """Whether one foreign letter rejects a text: a model of one script cannot speak it."""
        return self.scripts == {"LATIN"}

    def find_foreign(self, text: str) -> str | None:
        """The letter for which a text is rejected, or None.

        A model of Latin letters rejects any other letter. A model of several scripts has seen
        foreign words in training; it rejects a text with more foreign letters than own letters.
        """
        if not self.scripts or text.isascii():
            return None
        if self.is_strict:
            return next((letter for letter in text if self.is_foreign(letter)), None)
        num_own, num_foreign = self.count(text)
        if num_foreign <= num_own:
            return None
        return next(letter for letter in text if self.is_foreign(letter))

    def count(self, text: str) -> tuple[int, int]:
        """The number of own letters and of foreign letters."""
        if not self.scripts or text.isascii():  # like in `find_foreign`
            return sum(map(str.isalpha, text)), 0
        num_foreign = sum(map(self.is_foreign, text))
        return sum(map(is_letter, text)) - num_foreign, num_foreign

    def skip_foreign(self, text: str) -> tuple[str, list[str]]:
        """The text without foreign letters, and the runs of foreign letters."""
        runs: list[str] = []
        return LetterSkipper(self, runs).feed(text), runs

    def is_foreign(self, character: str) -> bool:
        scripts = scripts_of(character)
        return bool(scripts) and not self.scripts.issuperset(scripts)


class LetterSkipper:
    """Leaves out the foreign letters of an utterance. The result does not depend on the pieces.

    Marks and wide punctuation after a foreign letter belong to its run. Spaces and signs after a
    run are left out too if nothing stands between them and the space or sign before the run.
    """

    def __init__(self, letters: Letters, runs: list[str]) -> None:
        """`runs` collects the runs of foreign letters."""
        self._letters, self._runs = letters, runs
        self._is_inside = False  # the last character belongs to a run
        self._is_after_run = False  # only spaces were kept since the last run
        self._is_spaced = True  # the kept text is empty or ends with white space
        self._end = ""  # last kept character that is no white space

    def feed(self, text: str) -> str:
        """The text without foreign letters; a run may continue in the next piece."""
        if not self._letters.scripts:
            return text
        if text.isascii() and not self._is_after_run:  # most texts
            self._is_inside = False
            self._is_spaced = text[-1].isspace() if text else self._is_spaced
            self._end = str.rstrip(text)[-1:] or self._end
            return text
        kept, start = list[str](), 0
        for place, character in enumerate(text):
            if not self._keep(character):
                kept.append(text[start:place])
                start = place + 1
        return join([*kept, text[start:]])

    def _keep(self, character: str) -> bool:
        """Read one character; return whether it stays."""
        was_inside = self._is_inside
        joins = was_inside and _joins_letter(character)
        self._is_inside = self._letters.is_foreign(character) or joins
        if self._is_inside:
            self._is_after_run = True
            self._runs.append((self._runs.pop() if was_inside else "") + character)
        if self._is_inside or (self._is_after_run and self._is_left_over(character)):
            return False
        self._is_spaced = character.isspace()
        if not self._is_spaced:
            self._end, self._is_after_run = character, False
        return True

    def _is_left_over(self, character: str) -> bool:
        if character.isspace():
            return self._is_spaced
        return character in _STOPS and (not self._end or self._end in _STOPS)


def _joins_letter(character: str) -> bool:
    """Whether a character is left out with the letter before it."""
    is_mark = unicodedata.category(character)[0] == "M"
    return is_mark or unicodedata.east_asian_width(character) in "WF"


def close_gaps(text: str) -> str:
    """Remove the spaces, commas and leading signs that left-out words leave behind."""
    return substitute(_GAP_BEFORE_SIGN, "", substitute(_LEADING_SIGNS, GROUP_1, text))
