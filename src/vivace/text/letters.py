"""Checks that a text can be spoken in the checkpoint's languages."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from vivace.errors import TextError
from vivace.text.scripts import DIALECT, LANGUAGE_SCRIPTS, is_letter, scripts_of
from vivace.text.spans import GROUP_1, join, substitute

_SIGNS = frozenset("&%@§°©®™")  # spoken signs besides currency signs
_GAP = re.compile(r" {2,}")
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
        raise TextError(f"the text {what}; there is nothing to say")


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
            return next((letter for letter in text if self._is_foreign(letter)), None)
        num_own, num_foreign = self.count(text)
        if num_foreign <= num_own:
            return None
        return next(letter for letter in text if self._is_foreign(letter))

    def count(self, text: str) -> tuple[int, int]:
        """The number of own letters and of foreign letters."""
        if not self.scripts or text.isascii():  # like in `find_foreign`
            return sum(map(str.isalpha, text)), 0
        num_foreign = sum(map(self._is_foreign, text))
        return sum(map(is_letter, text)) - num_foreign, num_foreign

    def skip_foreign(self, text: str) -> tuple[str, list[str]]:
        """The text without foreign letters, and the runs of foreign letters.

        Marks and wide punctuation after a foreign letter belong to its run.
        """
        if not self.scripts or text.isascii():
            return text, []
        edges, is_inside = [0], False
        for place, character in enumerate(text):
            was_inside = is_inside
            is_inside = self._is_foreign(character) or (is_inside and _joins_letter(character))
            if is_inside != was_inside:
                edges.append(place)
        parts = [text[start:end] for start, end in itertools.pairwise([*edges, len(text)])]
        return join(parts[::2]), list(map(str, parts[1::2]))

    def _is_foreign(self, character: str) -> bool:
        scripts = scripts_of(character)
        return bool(scripts) and not self.scripts.issuperset(scripts)


def _joins_letter(character: str) -> bool:
    """Whether a character is left out with the letter before it."""
    is_mark = unicodedata.category(character)[0] == "M"
    return is_mark or unicodedata.east_asian_width(character) in "WF"


def close_gaps(text: str) -> str:
    """Remove the spaces and commas that left-out words leave behind."""
    text = substitute(_LEADING_SIGNS, GROUP_1, substitute(_GAP, " ", text))
    return substitute(_GAP_BEFORE_SIGN, "", text)
