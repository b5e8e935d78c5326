"""Splits a text into words, each with the signs around it."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass

MAX_TOKEN = 200  # characters; longer runs are split
_MAX_GAP = 8  # white space between words of one paragraph
_LEADS = "([{<\"“”'‘’„‚«‹*_`~|¿¡"
_TRAILS = ".,;:!?…)]}>\"“”'‘’»›*_`~|"
_SPACE = re.compile(r"\s*")
_SOLID = re.compile(rf"\S{{1,{MAX_TOKEN}}}")
_AROUND = re.compile(rf"([{re.escape(_LEADS)}]*)(.*?)([{re.escape(_TRAILS)}]*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Token:
    """A word with the white space and signs before it and the signs after it."""

    space: str
    lead: str
    core: str
    trail: str
    written: str  # the white space and the text, with their spans

    @property
    def text(self) -> str:
        return self.lead + self.core + self.trail

    @property
    def is_open(self) -> bool:
        """Whether no sign separates the word from the next word."""
        return not self.trail

    @property
    def is_apart(self) -> bool:
        """Whether the word begins another paragraph."""
        return is_break(self.space)


def is_break(space: str) -> bool:
    return len(space) > _MAX_GAP or space.count("\n") > 1


def make_token(space: str, text: str, written: str) -> Token:
    if text[0] in "~<>" and text[1:2].isdigit():  # "about", "less than", "more than"
        parts = _AROUND.fullmatch(text, 1)
        assert parts is not None
        return Token(space, "", text[0] + parts[2], parts[3], written)
    parts = _AROUND.fullmatch(text)
    assert parts is not None
    return Token(space, parts[1], parts[2], parts[3], written)


class NeedsMore(Exception):
    """More text must arrive before a token is complete."""


class TokenReader:
    """Returns complete tokens; raises NeedsMore for a token that has not arrived."""

    def __init__(self) -> None:
        self._rest = ""  # text after the last token
        self._place = 0  # the current place in `_rest`
        self._tokens: deque[Token] = deque()
        self._is_final = False
        self.before: Token | None = None  # previous word of the paragraph
        self.earlier: Token | None = None  # the word before `before`

    def feed(self, piece: str) -> None:
        self._rest = self._rest[self._place :] + piece
        self._place = 0

    def end(self) -> None:
        self._is_final = True

    def token(self, index: int = 0) -> Token | None:
        """The token `index` places ahead; None after the end of the paragraph or text."""
        while len(self._tokens) <= index:
            if self._tokens and self._is_at_break():
                return None
            if not self._read():
                return None
        if index and any(self._tokens[n].is_apart for n in range(1, index + 1)):
            return None
        return self._tokens[index]

    def skip(self, num_tokens: int) -> list[Token]:
        """Move past `num_tokens` tokens and return them."""
        skipped = [self._tokens.popleft() for _ in range(num_tokens)]
        for token in skipped:
            self.earlier, self.before = (None if token.is_apart else self.before), token
        return skipped

    def take_rest(self) -> str:
        """Return the white space after the last token."""
        rest, self._rest, self._place = self._rest[self._place :], "", 0
        return rest

    def _is_at_break(self) -> bool:
        space = _SPACE.match(self._rest, self._place)
        assert space is not None
        return is_break(space[0])

    def _read(self) -> bool:
        """Read another token; False at the end of the text."""
        space = _SPACE.match(self._rest, self._place)
        assert space is not None
        solid = _SOLID.match(self._rest, space.end())
        if solid is None or solid.end() == len(self._rest):
            is_whole = solid is not None and len(solid[0]) == MAX_TOKEN
            if not self._is_final and not is_whole:
                raise NeedsMore
            if solid is None:
                return False
        written = self._rest[self._place : solid.end()]
        self._tokens.append(make_token(space[0], solid[0], written))
        self._place = solid.end()
        return True
