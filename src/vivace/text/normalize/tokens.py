"""Splits a whole or a live text into words, each with the signs around it."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass

MAX_TOKEN = 200  # characters; longer runs are read in parts
_MAX_GAP = 8  # white space between words that belong together
_LEADS = "([{<\"“”'‘’„‚«‹*_`~|¿¡"
_TRAILS = ".,;:!?…)]}>\"“”'‘’»›*_`~|"
_SPACE = re.compile(r"\s*")
_SOLID = re.compile(rf"\S{{1,{MAX_TOKEN}}}")
_AROUND = re.compile(rf"([{re.escape(_LEADS)}]*)(.*?)([{re.escape(_TRAILS)}]*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Token:
    """`space` before it, then opening signs, the word itself and closing signs."""

    space: str
    lead: str
    core: str
    trail: str

    @property
    def text(self) -> str:
        return self.lead + self.core + self.trail

    @property
    def is_open(self) -> bool:
        """Whether no sign separates it from the next word."""
        return not self.trail

    @property
    def is_apart(self) -> bool:
        """Whether it begins another paragraph."""
        return is_break(self.space)


def is_break(space: str) -> bool:
    return len(space) > _MAX_GAP or space.count("\n") > 1


def make_token(space: str, text: str) -> Token:
    if text[0] in "~<>" and text[1:2].isdigit():  # about, less than, more than
        parts = _AROUND.fullmatch(text, 1)
        assert parts is not None
        return Token(space, "", text[0] + parts[2], parts[3])
    parts = _AROUND.fullmatch(text)
    assert parts is not None
    return Token(space, *parts.groups())


class NeedsMore(Exception):
    """Later text decides."""


class TokenReader:
    """Complete tokens; asking for one that is not written yet raises NeedsMore."""

    def __init__(self) -> None:
        self._rest = ""  # text after the last token
        self._place = 0  # where in it
        self._tokens: deque[Token] = deque()
        self._is_final = False
        self.before: Token | None = None  # the word read last, of the same paragraph
        self.earlier: Token | None = None  # and the one before it

    def feed(self, piece: str) -> None:
        self._rest = self._rest[self._place :] + piece
        self._place = 0

    def end(self) -> None:
        self._is_final = True

    def token(self, index: int = 0) -> Token | None:
        """A token from here, None after the end of the paragraph or of the text."""
        while len(self._tokens) <= index:
            if self._tokens and self._is_at_break():
                return None
            if not self._read():
                return None
        if index and any(self._tokens[n].is_apart for n in range(1, index + 1)):
            return None
        return self._tokens[index]

    def skip(self, num_tokens: int) -> list[Token]:
        """Go on after so many tokens, which are returned."""
        skipped = [self._tokens.popleft() for _ in range(num_tokens)]
        for token in skipped:
            self.earlier, self.before = (None if token.is_apart else self.before), token
        return skipped

    def take_rest(self) -> str:
        """White space after the last token."""
        rest, self._rest, self._place = self._rest[self._place :], "", 0
        return rest

    def _is_at_break(self) -> bool:
        space = _SPACE.match(self._rest, self._place)
        assert space is not None
        return is_break(space[0])

    def _read(self) -> bool:
        """One more token; False if the text is over."""
        space = _SPACE.match(self._rest, self._place)
        assert space is not None
        solid = _SOLID.match(self._rest, space.end())
        if solid is None or solid.end() == len(self._rest):
            is_whole = solid is not None and len(solid[0]) == MAX_TOKEN
            if not self._is_final and not is_whole:
                raise NeedsMore
            if solid is None:
                return False
        self._tokens.append(make_token(space[0], solid[0]))
        self._place = solid.end()
        return True
