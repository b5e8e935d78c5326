"""Tokenizes a text in pieces: cuts only where a token always ends."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from tokenizers import Regex, normalizers

from vivace.text.tokenizer import TextTokenizer

# Maps each character to a representative of its class, by the Unicode tables of `tokenizers`.
_KINDS = normalizers.Sequence(
    [
        normalizers.NFC(),
        normalizers.Replace(Regex(r"\p{M}"), "\u0301"),
        normalizers.Replace(Regex(r"[^\s\p{L}\p{N}\p{M}]"), "!"),
        normalizers.Replace(Regex(r"\p{N}"), "0"),
        normalizers.Replace(Regex(r"[\r\n]"), "\n"),
        normalizers.Replace(Regex(r"[^\S\r\n]"), " "),
        normalizers.Replace(Regex(r"\p{L}"), "a"),
    ]
)
# Pairs of classes between which both patterns always cut. No pair begins with a space, whose token
# depends on the next character, and no pair ends with a letter or a mark.
_CUTS = {
    *("a ", "a\n", "a0", "a!"),
    *("0 ", "0\n", "00", "0!"),
    *("! ", "!0", "\u0301 ", "\u03010"),
    *("\n0", "\n!"),
}


class LiveTokenizer:
    """Returns the ids that `tokenizer.encode` returns for the whole text.

    The last word, run of spaces or run of punctuation is held back. `strip_end` removes white
    space at the end of the text.
    """

    def __init__(self, tokenizer: TextTokenizer, *, strip_end: bool = False) -> None:
        self._tokenizer, self._strip_end = tokenizer, strip_end
        self._held: list[str] = []  # the pieces after the last certain cut
        self._last = ""  # the last character fed

    def feed(self, piece: str) -> list[int]:
        """Return the ids that later pieces cannot change."""
        cut = self._find_cut(piece)
        self._last = piece[-1:] or self._last
        if cut is None:
            self._held.append(piece)
            return []
        certain = "".join([*self._held, piece[:cut]])
        self._held = [piece[cut:]]
        return self._tokenizer.encode(certain)

    def finish(self) -> list[int]:
        """Return the rest. The next piece begins another text."""
        rest = "".join(self._held)  # with all white space at the end: no cut follows a space
        rest = rest.rstrip() if self._strip_end else rest
        self._held, self._last = [], ""
        return self._tokenizer.encode(rest)

    def _find_cut(self, piece: str) -> int | None:
        """The last place in the piece where a token always ends."""
        for index in range(len(piece) - 1, -1, -1):
            before = piece[index - 1] if index else self._last
            if before and _is_cut(before, piece[index]):
                return index
        return None


@lru_cache(maxsize=16_384)
def _is_cut(before: str, after: str) -> bool:
    # A letter, a mark or an unassigned character may compose with the one before it.
    if unicodedata.category(after)[0] in "LM" or unicodedata.category(after) == "Cn":
        return False
    # One of the patterns lets "/" follow line ends.
    if before in "\r\n" and after == "/":
        return False
    return _kind(before)[-1] + _kind(after)[0] in _CUTS


@lru_cache(maxsize=16_384)
def _kind(character: str) -> str:
    kinds: str = _KINDS.normalize_str(character)
    return kinds
