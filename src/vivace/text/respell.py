"""Replaces lexicon words by their respellings, and spelling marks by words.

The longest matching entry wins. A respelling is not searched again, so entries may refer to each
other. Text is held back while it may still become an entry or a mark: the result does not depend
on the pieces.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from vivace.text.breaks import skip_spaces
from vivace.text.normalize.rules import NeedsMore
from vivace.text.spans import join, rewrite
from vivace.text.spelling import MARK, is_open_mark, read_mark, read_marks
from vivace.text.trie import (
    END,
    Kind,
    Node,
    Trie,
    begins_word,
    ends_word,
    fold,
    kind_of,
    plain_apostrophes,
)
from vivace.text.written_words import WrittenWords

_CONTEXT = 2  # characters before a place that `begins_word` reads
_COMPOUND = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)+")


Match = tuple[int, str]  # end of the match, replacement


def respell(text: str, tries: Sequence[Trie] = (), *, is_english: bool = False) -> str:
    """Respell a whole text."""
    return Respeller(tries, is_english=is_english).finish(text)


class Respeller:
    """Respells a text in pieces; of equally long entries the first trie's entry wins."""

    def __init__(
        self,
        tries: Sequence[Trie] = (),
        *,
        is_english: bool = False,
        words: WrittenWords | None = None,
    ) -> None:
        """`is_english`: the English normalizer reads the result. `words` collects the words."""
        self._words = words
        self._exact = [trie.exact for trie in tries]
        self._folded = [trie.folded for trie in tries]
        self._is_english = is_english
        self._starts = _starts(frozenset(first for trie in tries for first in trie.firsts))
        self._before = self._held = ""

    def feed(self, piece: str) -> str:
        return self._read(piece, is_final=False)

    def finish(self, piece: str = "") -> str:
        rest = self._read(piece, is_final=True)
        self._before = ""
        self._end_word()
        return rest

    def _read(self, piece: str, *, is_final: bool) -> str:
        if not self._exact and self._words is None and not self._held and "[" not in piece:
            return piece
        text = self._before + self._held + piece
        plain = plain_apostrophes(text)
        folded = _fold_all(plain) if any(self._folded) else ""
        done = place = len(self._before)
        end, out = len(text), list[str]()
        while found := self._starts.search(text, place):
            place = found.start()
            try:
                match = self._match(text, (plain, folded), place, is_final=is_final)
            except NeedsMore:
                end = place
                break
            if match is None:
                place += 1
                continue
            self._give(text[done:place], None, out)
            self._give(text[place : match[0]], match[1], out)
            done = place = match[0]
        self._give(text[done:end], None, out)
        self._held, self._before = text[end:], text[max(0, end - _CONTEXT) : end]
        return join(out)

    def _give(self, written: str, respelled: str | None, out: list[str]) -> None:
        """Add text; a spelling mark is the word in its brackets."""
        mark = MARK.fullmatch(written) if respelled is not None else None
        written = written[mark.start(2) : mark.end(2)] if mark else written
        if self._words is not None:
            self._words.add(written)
        if mark:
            self._end_word()
        out.append(written if respelled is None else rewrite(written, respelled))

    def _end_word(self) -> None:
        if self._words is not None:
            self._words.end_word()

    def _match(
        self, text: str, forms: tuple[str, str], start: int, *, is_final: bool
    ) -> Match | None:
        """The entry or mark at `start`; raises NeedsMore before it is certain."""
        if text[start] == "[":
            if mark := MARK.match(text, start):
                return mark.end(), read_mark(mark, is_english=self._is_english)
            if not is_final and is_open_mark(text, start):
                raise NeedsMore
        if not begins_word(text, start):
            return None
        best = None
        for roots in zip(self._exact, self._folded, strict=True):
            for node, written in zip(roots, forms, strict=True):
                match = _walk(node, written, start, is_final=is_final) if node else None
                if match is not None and (best is None or match[0] > best[0]):
                    best = match
        return best and (best[0], self._fit(best[1], text[start]))

    def _fit(self, words: str, first: str) -> str:
        words = read_marks(words, is_english=self._is_english)
        if self._is_english:
            words = _COMPOUND.sub(_drop_stress, words)
        return words[0].upper() + words[1:] if first.isupper() and words[0].islower() else words


@lru_cache(maxsize=64)
def _starts(firsts: frozenset[str]) -> re.Pattern[str]:
    """A pattern for places where a mark or an entry may begin."""
    firsts -= {"["}
    words = "".join(re.escape(one) for one in firsts if kind_of(one) is Kind.WORD)
    others = "".join(re.escape(one) for one in firsts if kind_of(one) is not Kind.WORD)
    after_none = rf"(?<![A-Za-z0-9_])[{words}]|" if words else ""
    return re.compile(rf"{after_none}[\[{others}]")


def _fold_all(text: str) -> str:
    """Lower case with the same number of characters."""
    return text.lower() if text.isascii() else "".join(map(fold, text))


def _walk(node: Node, text: str, start: int, *, is_final: bool) -> Match | None:
    """The longest entry that begins at `start`; raises NeedsMore before it is certain."""
    best, place, size = None, start, len(text)
    while place < size:
        character = text[place]
        place += 1
        if character.isspace():  # a run of white space matches one space of an entry
            end = skip_spaces(text, place)
            if text.count("\n", place - 1, end) > 1:  # another paragraph
                return best
            character, place = " ", end
        child = node.get(character)
        if child is None:
            return best
        node = child
        if END in node:
            is_end = ends_word(text, start, place, is_final=is_final)
            if is_end is None:
                raise NeedsMore
            if is_end:
                best = (place, node[END])
    if not is_final:
        raise NeedsMore
    return best


def _drop_stress(compound: re.Match[str]) -> str:
    """Write a stressed syllable in lower case: the normalizer would spell "VAH" out."""
    parts = compound[0].split("-")
    if not any(part.islower() for part in parts):
        return compound[0]
    return "-".join(part.lower() if len(part) > 1 and part.isupper() else part for part in parts)
