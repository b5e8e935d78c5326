"""Counts the words of a book, and checks that none is lost on the way to the voice.

Letters and digits are compared rather than words: markup inside a word does not change their
number, and a single lost letter is found.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from vivace.errors import RequestError

MAX_SHOWN_CHARS = 60
_NO_LETTER = re.compile(r"[\W_]+")
_WORD = re.compile(r"\S*[^\W_]\S*")


def letters_of(text: str) -> str:
    """The letters and digits of a text, without anything between them."""
    return _NO_LETTER.sub("", text)


def count_letters(text: str) -> int:
    return len(letters_of(text))


def count_words(text: str) -> int:
    """The number of parts between white space that have a letter or a digit."""
    return sum(1 for _ in _WORD.finditer(text))


@dataclass(slots=True)
class LeftOut:
    """Text of a book that is deliberately not spoken, by category."""

    num_words: Counter[str] = field(default_factory=Counter)
    num_letters: int = 0

    def add(self, category: str, text: str) -> None:
        if num_words := count_words(text):
            self.num_words[category] += num_words
            self.num_letters += count_letters(text)

    def update(self, other: LeftOut) -> None:
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
        f"{where}: {num_expected:,} letters and digits are in the file and {num_found:,} would be "
        f"spoken or left out{_first_difference(source, found)}; repair the file first"
    )


def _first_difference(source: str, parts: Iterable[str]) -> str:
    """The first words of the source that the parts have less often."""
    has = Counter(_words(" ".join(parts)))
    for word in _words(source):
        if not has[word]:
            return f", the first difference is at {word[:MAX_SHOWN_CHARS]!r}"
        has[word] -= 1
    return ""


def _words(text: str) -> Iterator[str]:
    return (match[0] for match in _WORD.finditer(text))


def is_within(wanted: str, text: str) -> bool:
    """Whether the letters of `wanted` are in `text`, in the same order."""
    rest = iter(letters_of(text))
    return all(letter in rest for letter in letters_of(wanted))
