"""The result of a rule, and helpers that rules use to look at neighbouring words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vivace.text.normalize.tables import word_set
from vivace.text.normalize.tokens import Token, TokenReader


@dataclass(frozen=True, slots=True)
class Reading:
    """The words for `num_tokens` tokens; the signs around them stay unless given."""

    words: str
    num_tokens: int = 1
    trail: str | None = None  # None: that of the last token
    lead: str | None = None  # None: that of the first


# Words that begin a sentence more often than they are part of a name.
_BEGINNERS = word_set("sentence_starters")

Rule = Callable[[TokenReader, Token], Reading | None]


def core_after(reader: TokenReader, index: int) -> str:
    """The word `index` places ahead if no sign separates it from this one, else ""."""
    for place in range(index):
        token = reader.token(place)
        if token is None or not token.is_open:
            return ""
    token = reader.token(index)
    return "" if token is None or token.lead else token.core


def word_before(reader: TokenReader) -> str:
    """The previous word in lower case if no sign separates it from this one, else ""."""
    before = reader.before
    return before.core.lower() if before is not None and before.is_open else ""


def begins_sentence(reader: TokenReader) -> bool:
    before = reader.before
    return before is None or any(stop in before.trail for stop in ".!?…")


def stop_after(reader: TokenReader, trail: str, place: int, *, is_name: bool = False) -> str:
    """The signs after an abbreviation, with its full stop only where a sentence ends.

    A capital after it shows that end, but after a name (`U.S. Army`) only a sentence starter does.
    """
    if trail[1:].strip("\"'”’)"):
        return trail[1:]
    following = reader.token(place + 1)
    if following is None or following.space.count("\n"):
        return trail
    is_end = following.core in _BEGINNERS if is_name else following.core[:1].isupper()
    return trail if is_end or following.lead[:1] in tuple('"“‘') else trail[1:]


def is_capitalised(token: Token | None) -> bool:
    """Whether it looks like a name: a capital, then small letters."""
    return token is not None and token.core[:1].isupper() and token.core[1:2].islower()
