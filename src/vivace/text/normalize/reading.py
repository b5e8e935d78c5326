"""What a rule says of the words at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vivace.text.normalize.tokens import Token, TokenReader


@dataclass(frozen=True, slots=True)
class Reading:
    """Words for so many tokens; the signs around them stay unless a rule has used them up."""

    words: str
    num_tokens: int = 1
    trail: str | None = None  # None: that of the last token
    lead: str | None = None  # None: that of the first


Rule = Callable[[TokenReader], Reading | None]


def core_after(reader: TokenReader, index: int) -> str:
    """The word so many places on, if nothing parts it from the ones before; else nothing."""
    for place in range(index):
        token = reader.token(place)
        if token is None or not token.is_open:
            return ""
    token = reader.token(index)
    return "" if token is None or token.lead else token.core


def word_before(reader: TokenReader) -> str:
    """The word before this one in lower case, if nothing parts them; else nothing."""
    before = reader.before
    return before.core.lower() if before is not None and before.is_open else ""


def begins_sentence(reader: TokenReader) -> bool:
    before = reader.before
    return before is None or any(stop in before.trail for stop in ".!?…")


def is_capitalised(token: Token | None) -> bool:
    """Whether it looks like a name: a capital, then small letters."""
    return token is not None and token.core[:1].isupper() and token.core[1:2].islower()
