"""Counts the words of a book and checks that none is lost between the file and the model.

The check compares letters and digits instead of words: markup inside a word does not change their
number, and a single lost letter is detected.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from vivace.errors import RequestError

MAX_SHOWN_CHARS = 60
_NO_LETTER = re.compile(r"[\W_]+")
_WORD = re.compile(r"\S*[^\W_]\S*")


def letters_of(text: str) -> str:
    """Only the letters and digits of a text."""
    return _NO_LETTER.sub("", text)


def count_letters(text: str) -> int:
    return len(letters_of(text))


def count_words(text: str) -> int:
    """The number of whitespace-separated parts that have a letter or a digit."""
    return len(_WORD.findall(text))


@dataclass(slots=True)
class LeftOutText:
    """Counts of text that is intentionally not spoken, by category."""

    num_words: Counter[str] = field(default_factory=Counter)
    num_letters: int = 0

    def add(self, category: str, text: str) -> None:
        if num_words := count_words(text):
            self.num_words[category] += num_words
            self.num_letters += count_letters(text)

    def update(self, other: LeftOutText) -> None:
        self.num_words.update(other.num_words)
        self.num_letters += other.num_letters


def check_letters(where: str, source: str, parts: Iterable[str], num_left_out: int = 0) -> None:
    """Raise RequestError unless every letter of `source` is in `parts` or was left out."""
    found = list(parts)
    num_expected = count_letters(source)
    num_found = sum(map(count_letters, found)) + num_left_out
    if num_found == num_expected:
        return
    raise RequestError(
        f"{where}: {num_expected:,} letters and digits are in the file, but {num_found:,} would be "
        f"spoken or left out{_first_difference(source, found)}; repair the file first"
    )


def _first_difference(source: str, parts: Iterable[str]) -> str:
    """Describe the first word of the source that occurs less often in the parts."""
    num_found = Counter(_WORD.findall(" ".join(parts)))
    for word in _WORD.findall(source):
        if not num_found[word]:
            return f", the first difference is at {word[:MAX_SHOWN_CHARS]!r}"
        num_found[word] -= 1
    return ""


def is_within(part: str, text: str) -> bool:
    """Whether all letters of `part` occur in `text` in the same order."""
    rest = iter(letters_of(text))
    return all(letter in rest for letter in letters_of(part))
