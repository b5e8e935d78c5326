"""Caches the token ids of words.

ASCII text only: NFC does not change it, and `re` splits it like the tokenizer's own pattern.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_WORDS = 2**14
MAX_LENGTH = 32  # characters; longer words are not cached

# `QWEN2_PATTERN` of tokenizer.py, for ASCII.
_WORD = re.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\nA-Za-z0-9]?[A-Za-z]+"
    r"|[0-9]"
    r"| ?[^\sA-Za-z0-9]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+",
    re.ASCII,
)


class KnownWords:
    """A cache that threads may share: a word that one thread drops is tokenized again."""

    def __init__(self) -> None:
        self._ids: dict[str, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def encode(self, text: str) -> list[int] | None:
        """The ids of a text; None if a word is not cached."""
        if not text.isascii():
            return None
        known = self._ids
        try:
            return [token_id for word in _WORD.findall(text) for token_id in known[word]]
        except KeyError:
            return None

    def learn(self, text: str, ids: Sequence[int], word_of: Sequence[int | None]) -> None:
        """Add the words of a text; `word_of` is the index of each id's word."""
        if not text.isascii():
            return
        words = _WORD.findall(text)
        found: list[list[int]] = [[] for _ in words]
        for token_id, number in zip(ids, word_of, strict=True):
            assert number is not None  # only added tokens belong to no word
            found[number].append(token_id)
        if len(self._ids) + len(words) > MAX_WORDS:
            self._ids.clear()
        for word, own in zip(words[:MAX_WORDS], found, strict=False):
            if len(word) <= MAX_LENGTH:
                self._ids[word] = tuple(own)
