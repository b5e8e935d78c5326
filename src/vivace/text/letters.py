"""Checks that a text can be spoken, and that its script is one of the checkpoint's languages."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from vivace.errors import TextError

_LATIN = ("LATIN",)
_HAN = ("CJK", "IDEOGRAPHIC", "BOPOMOFO")
SCRIPTS = {
    **dict.fromkeys(("english", "french", "german", "italian", "portuguese", "spanish"), _LATIN),
    "russian": ("CYRILLIC",),
    "chinese": _HAN,
    "japanese": (*_HAN, "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"),
    "korean": (*_HAN, "HANGUL"),
}
DIALECT = "_dialect"  # of Chinese, in the released files
_SIGNS = frozenset("&%@§°©®™")  # that people read aloud, beside the signs of currencies
_GAP = re.compile(r" {2,}")
_GAP_BEFORE_SIGN = re.compile(r"[ ,]+(?=[,.;:!?])")
_LEADING_SIGNS = re.compile(r"\A(\s*)[,.;:!?]+ ?")
_BLANK = frozenset({"Zs", "Zl", "Zp", "Cc", "Cf"})  # white space and control characters


def is_speakable(text: str) -> bool:
    """Whether there is anything to say: a letter, a digit, or a sign that has a name."""
    return any(map(_is_spoken, text))


def is_blank(text: str) -> bool:
    return all(unicodedata.category(character) in _BLANK for character in text)


def check_speakable(text: str) -> None:
    """A TextError for a text of which nothing can be said; needs no model."""
    if not is_speakable(text):
        what = (
            "is empty or blank" if is_blank(text) else f"has no words in it: {text.strip()[:40]!r}"
        )
        raise TextError(f"the text {what}; there is nothing to say")


@lru_cache(maxsize=4096)
def _is_spoken(character: str) -> bool:
    category = unicodedata.category(character)
    # A lone surrogate ("Cs") is refused later, where the text is encoded.
    return category[0] in "LN" or category in ("Sc", "Cs") or character in _SIGNS


@dataclass(frozen=True, slots=True)
class Letters:
    """The letters that some languages are written with."""

    scripts: frozenset[str]  # as Unicode names them; empty if any letter may be one

    @classmethod
    def of(cls, languages: Collection[str]) -> Letters:
        """Of languages by name; one that is not known here may have any letters."""
        scripts: set[str] = set()
        for language in languages:
            name = "chinese" if language.endswith(DIALECT) else language
            if name not in SCRIPTS:
                return cls(frozenset())
            scripts.update(SCRIPTS[name])
        return cls(frozenset(scripts))

    @property
    def is_strict(self) -> bool:
        """Whether a single other letter is too many: a model of one script has no sound for it."""
        return self.scripts == {"LATIN"}

    def find_foreign(self, text: str) -> str | None:
        """The letter for which a text is refused, or None.

        A model of Latin letters only refuses any other letter; a model of several scripts has seen
        foreign words in training and refuses only a text with more foreign letters than own ones.
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
        """How many letters are of these languages, and how many are of none."""
        num_foreign = sum(map(self._is_foreign, text)) if self.scripts else 0
        return sum(map(_is_letter, text)) - num_foreign, num_foreign

    def skip_foreign(self, text: str) -> tuple[str, list[str]]:
        """The text without letters of other languages, and the runs that were left out.

        Marks and wide punctuation after such a letter belong to its run.
        """
        if not self.scripts or text.isascii():
            return text, []
        kept, runs, is_inside = list[str](), list[str](), False
        for character in text:
            is_foreign = self._is_foreign(character)
            if is_foreign and not is_inside:
                runs.append("")
            is_inside = is_foreign or (is_inside and _clings(character))
            if is_inside:
                runs[-1] += character
            else:
                kept.append(character)
        return "".join(kept), runs

    def _is_foreign(self, character: str) -> bool:
        scripts = _scripts_of(character)
        return bool(scripts) and not self.scripts.issuperset(scripts)


def _clings(character: str) -> bool:
    """Whether a character belongs to the letter before it: a mark, or wide punctuation."""
    is_mark = unicodedata.category(character)[0] == "M"
    return is_mark or unicodedata.east_asian_width(character) in "WF"


def close_gaps(text: str) -> str:
    """A text of which words were left out, without spaces and commas that are too many."""
    return _GAP_BEFORE_SIGN.sub("", _LEADING_SIGNS.sub(r"\1", _GAP.sub(" ", text)))


@lru_cache(maxsize=4096)
def _scripts_of(character: str) -> frozenset[str]:
    """The scripts of a letter, or of the letters it is a variant of; of other signs none."""
    plain = unicodedata.normalize("NFKC", character)
    return frozenset(
        unicodedata.name(part, "UNKNOWN").split()[0] for part in plain if _is_letter(part)
    )


@lru_cache(maxsize=4096)
def _is_letter(character: str) -> bool:
    return unicodedata.category(character) in ("Lu", "Ll", "Lt", "Lo")
