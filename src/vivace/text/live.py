"""Tokenizes live text to the ids of the whole text, by cutting it only where tokens always end."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from tokenizers import Regex, normalizers

from vivace.text.tokenizer import TextTokenizer

# Maps each character to one that stands for its class, by the Unicode tables of `tokenizers`.
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
# Pairs of classes between which both patterns always cut, whatever comes before or after. None
# begins with a space, whose token depends on what follows, and none ends with a letter or a mark.
_CUTS = {
    *("a ", "a\n", "a0", "a!"),
    *("0 ", "0\n", "00", "0!"),
    *("! ", "!0", "\u0301 ", "\u03010"),
    *("\n0", "\n!"),
}


class LiveTokenizer:
    """One text, fed in pieces of any size, to the ids that `tokenizer.encode` gives the whole.

    A word's ids come out with the character after it, and the rest at the end. What is held back
    is the last word, run of spaces or run of punctuation. `strip_end` gives the ids of the text
    without the white space at its end.
    """

    def __init__(self, tokenizer: TextTokenizer, *, strip_end: bool = False) -> None:
        self._tokenizer, self._strip_end = tokenizer, strip_end
        self._held: list[str] = []  # the pieces after the last certain cut
        self._last = ""  # its last character

    def feed(self, piece: str) -> list[int]:
        """The ids that have become certain; half of a surrogate pair is a RequestError."""
        cut = self._find_cut(piece)
        self._last = piece[-1:] or self._last
        if cut is None:
            self._held.append(piece)
            return []
        certain = "".join([*self._held, piece[:cut]])
        self._held = [piece[cut:]]
        return self._tokenizer.encode(certain)

    def finish(self) -> list[int]:
        """The remaining ids; the next piece begins another text."""
        rest = "".join(self._held)  # all white space at the end among it: no cut follows a space
        rest = rest.rstrip() if self._strip_end else rest
        self._held, self._last = [], ""
        return self._tokenizer.encode(rest)

    def _find_cut(self, piece: str) -> int | None:
        """The last place in the piece where the text before it is certain."""
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
