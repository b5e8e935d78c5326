"""First pass over a text: joins surrogate pairs and limits white space."""

from __future__ import annotations

import re

from vivace.errors import RequestError

MAX_SPACES = 64  # in a row; more are dropped
_SPACES = re.compile(r"\s+")
_MANY_SPACES = re.compile(rf"(\s{{{MAX_SPACES}}})\s+")
_LONE_HALF = re.compile("[\ud800-\udfff]")


def tidy_text(text: str) -> str:
    """Limit white space in a whole text; a lone surrogate is refused later, by the tokenizer."""
    return _MANY_SPACES.sub(r"\1", text)


class Tidier:
    """`tidy_text` for a text in pieces.

    Joins surrogate pairs, which JSON and JavaScript may split across pieces; a lone surrogate is
    left out and remembered in `error`.
    """

    def __init__(self) -> None:
        self._half = ""  # the first of two, at the end of a piece
        self._num_spaces = 0  # at the end of the text returned so far
        self.error: RequestError | None = None

    def feed(self, piece: str) -> str:
        return self._limit_spaces(self._join_halves(piece))

    def finish(self) -> None:
        """The text ends here."""
        self._drop_half(self._half)
        self._half, self._num_spaces = "", 0

    def _join_halves(self, piece: str) -> str:
        piece = self._half + piece
        self._half = ""
        if piece.isascii():
            return piece
        if "\ud800" <= piece[-1:] <= "\udbff":
            piece, self._half = piece[:-1], piece[-1]
        if not _LONE_HALF.search(piece):
            return piece
        whole = piece.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        return _LONE_HALF.sub(lambda half: self._drop_half(half[0]), whole)

    def _drop_half(self, half: str) -> str:
        if half and self.error is None:
            self.error = RequestError(
                f"the text has half of a surrogate pair (U+{ord(half):04X}) without its other half "
                "and cannot be encoded; send valid Unicode"
            )
        return ""

    def _limit_spaces(self, text: str) -> str:
        if not text:
            return text
        lead = _SPACES.match(text)
        num_lead = lead.end() if lead else 0
        kept = max(0, min(num_lead, MAX_SPACES - self._num_spaces))
        if num_lead == len(text):
            self._num_spaces += kept
            return text[:kept]
        self._num_spaces = min(MAX_SPACES, len(text) - len(text.rstrip()))
        return text[:kept] + _MANY_SPACES.sub(r"\1", text[num_lead:])
