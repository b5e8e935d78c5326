"""Strings that carry the source span of each character.

`SpannedText` is an ordinary string to regular expressions. Its slices, sums and stripped forms keep
their spans. The stages of the text pipeline build their results from slices and with `join`,
`substitute` and `rewrite`. These functions also accept plain strings and then return plain strings:
a text without word timings is prepared at the speed of plain strings.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import SupportsIndex

from vivace.text.scripts import HAN_AND_KANA

Span = tuple[int, int]  # start and end in the caller's text
GROUP_1 = r"\1"  # a replacement that keeps the spans of the first group
# A word with its signs; in Chinese and Japanese every character is a word.
UNIT = re.compile(rf"[{HAN_AND_KANA}][^\w\s]*|[^\s{HAN_AND_KANA}]+")


class SpannedText(str):
    """A string with a source span for each character. Spans do not go backwards.

    A plain string that is added gets an empty span at its place.
    """

    __slots__ = ("spans",)
    spans: tuple[Span, ...]

    def __new__(cls, text: str, spans: Iterable[Span]) -> SpannedText:
        made = super().__new__(cls, text)
        made.spans = tuple(spans)
        assert len(made.spans) == len(made)
        return made

    @classmethod
    def read(cls, text: str, start: int) -> SpannedText:
        """A piece of the caller's text that begins at `start`."""
        return cls(text, itertools.pairwise(range(start, start + len(text) + 1)))

    @property
    def span(self) -> Span:
        """The span of the whole text, which must not be empty."""
        return self.spans[0][0], self.spans[-1][1]

    def __getitem__(self, key: SupportsIndex | slice) -> SpannedText:
        spans = self.spans[key] if isinstance(key, slice) else (self.spans[key],)
        return SpannedText(super().__getitem__(key), spans)

    def __add__(self, other: str) -> str:
        return join([self, other])

    def __radd__(self, other: str) -> str:
        return join([other, self])

    def strip(self, chars: str | None = None, /) -> SpannedText:
        return self.rstrip(chars).lstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> SpannedText:
        return self[len(self) - len(super().lstrip(chars)) :]

    def rstrip(self, chars: str | None = None, /) -> SpannedText:
        return self[: len(super().rstrip(chars))]


def join(parts: Sequence[str], separator: str = "") -> str:
    """`separator.join(parts)` with the spans of the parts."""
    if len(parts) == 1:
        return parts[0]
    for part in parts:
        if type(part) is SpannedText:
            return _join_spanned(parts, separator)
    return separator.join(parts)


def _join_spanned(parts: Sequence[str], separator: str) -> SpannedText:
    place = next((part.span[0] for part in parts if part and isinstance(part, SpannedText)), 0)
    spans: list[Span] = []
    for number, part in enumerate(parts):
        if number:
            spans += [(place, place)] * len(separator)
        if isinstance(part, SpannedText):
            spans += part.spans
            place = spans[-1][1] if spans else place
        else:
            spans += [(place, place)] * len(part)
    return SpannedText(separator.join(parts), spans)


def split(text: str, separator: str) -> list[str]:
    """`text.split(separator)` with the spans of the parts."""
    parts = text.split(separator)
    if not isinstance(text, SpannedText):
        return parts
    starts = itertools.accumulate((len(part) + len(separator) for part in parts), initial=0)
    return [text[start : start + len(part)] for start, part in zip(starts, parts, strict=False)]


def substitute(
    pattern: re.Pattern[str],
    replacement: str | Callable[[re.Match[str]], str],
    text: str,
    count: int = 0,
) -> str:
    """`pattern.sub(replacement, text, count)`; a replacement has the span of its match.

    `GROUP_1` and a function that returns slices of `match.string` keep the spans of the characters.
    """
    if not isinstance(text, SpannedText):
        return pattern.sub(replacement, text, count)
    parts, place = list[str](), 0
    for match in itertools.islice(pattern.finditer(text), count or None):
        old = text[match.start() : match.end()]
        if replacement == GROUP_1:
            new: str = text[match.start(1) : match.end(1)]
        else:
            new = match.expand(replacement) if isinstance(replacement, str) else replacement(match)
        parts += [text[place : match.start()], new if type(new) is not str else rewrite(old, new)]
        place = match.end()
    return join([*parts, text[place:]])


def _count_one(word: str) -> int:
    return 1


def rewrite(old: str, new: str, count_words: Callable[[str], int] = _count_one) -> str:
    """`new` with the spans of `old`: each new word has the span of an old word.

    If the numbers of words differ, old words share the new ones in proportion to `count_words`.
    """
    if not isinstance(old, SpannedText) or not old:
        return new
    if old == new:
        return old
    units = [old[unit.start() : unit.end()] for unit in UNIT.finditer(old)]
    ends = [word.end() for word in UNIT.finditer(new)]
    if not units or not ends:
        return SpannedText(new, [old.span] * len(new))
    shares = [1] * len(units)
    if len(units) not in (1, len(ends)):
        shares = [max(1, count_words(unit)) for unit in units]
    limits = [limit * len(ends) / sum(shares) for limit in itertools.accumulate(shares)]
    spans: list[Span] = []
    for index, end in enumerate([*ends[:-1], len(new)]):
        unit = units[bisect.bisect_left(limits, index + 0.5)]
        spans += [unit.span] * (end - len(spans))
    return SpannedText(new, spans)
