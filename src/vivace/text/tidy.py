"""First stage of the text pipeline: joins surrogate pairs and limits white space."""

from __future__ import annotations

import re

from vivace.errors import RequestError, TextError
from vivace.text.spans import substitute

MAX_SPACES = 64  # in a row; more are dropped
_SPACES = re.compile(r"\s+")
_TOO_MANY = re.compile(rf"\s(?<=\s{{{MAX_SPACES + 1}}})\s*")
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_LONE_HALF = re.compile("[\ud800-\udfff]")


class Tidier:
    """Joins surrogate pairs, which JSON and JavaScript may split across pieces.

    A lone surrogate is left out; `error` describes the first one.
    """

    def __init__(self) -> None:
        self._half = ""  # first half of a pair at the end of a piece
        self._num_chars = 0  # read so far
        self._num_spaces = 0  # at the end of the text returned so far
        self.error: RequestError | None = None

    def feed(self, piece: str) -> str:
        return self._limit_spaces(self._join_halves(piece))

    def finish(self, piece: str = "") -> str:
        """Leave out a lone surrogate at the end. The next piece begins another text."""
        rest = self.feed(piece)
        self._drop_half(self._half, 0)
        self._half, self._num_chars, self._num_spaces = "", 0, 0
        return rest

    def _join_halves(self, piece: str) -> str:
        piece = self._half + piece
        self._half = ""
        if "\ud800" <= piece[-1:] <= "\udbff":
            piece, self._half = piece[:-1], piece[-1]
        if piece.isascii() or not _LONE_HALF.search(piece):
            self._num_chars += len(piece)
            return piece
        piece = substitute(_PAIR, _join_pair, piece)
        tidied = substitute(_LONE_HALF, lambda half: self._drop_half(half[0], half.start()), piece)
        self._num_chars += len(piece)
        return tidied

    def _drop_half(self, half: str, place: int) -> str:
        if half and self.error is None:
            self.error = TextError(
                f"character {self._num_chars + place} of the text is half of a surrogate pair "
                f"(U+{ord(half):04X}) and cannot be encoded; send valid Unicode"
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
        if num_lead == kept and len(text) - num_lead <= MAX_SPACES:  # the usual piece
            return text
        return text[:kept] + substitute(_TOO_MANY, "", text[num_lead:])


def _join_pair(pair: re.Match[str]) -> str:
    return pair[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le")
