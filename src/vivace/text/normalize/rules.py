"""What a language provides to the normalizer, and helpers for its rules.

A rule receives the current word and may look at its neighbours. It returns a `Reading`, or None if
it does not apply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vivace.text.normalize.tokens import Token, TokenReader


@dataclass(frozen=True, slots=True)
class Reading:
    """The words for `num_tokens` tokens; the signs around them stay unless given."""

    words: str
    num_tokens: int = 1
    trail: str | None = None  # None: the trail of the last token
    lead: str | None = None  # None: the lead of the first token


Rule = Callable[[TokenReader, Token], Reading | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageRules:
    """The normalization of one language."""

    rules: Callable[[Token], Sequence[Rule]]  # the rules to try for a word, in order
    is_unchanged: Callable[[Token], bool]  # a quick test for words that no rule changes
    plain_signs: Callable[[str], str]  # rewrites signs that the voice does not know
    read_leftovers: Callable[[str], str]  # reads what no rule has read


def core_after(reader: TokenReader, index: int) -> str:
    """The word `index` places ahead; "" if a sign or the end of the paragraph separates it."""
    for place in range(index):
        token = reader.token(place)
        if token is None or not token.is_open:
            return ""
    token = reader.token(index)
    return "" if token is None or token.lead else token.core


def word_before(reader: TokenReader) -> str:
    """The previous word in lower case; "" if a sign separates it from the current word."""
    before = reader.before
    return before.core.lower() if before is not None and before.is_open else ""


def begins_sentence(reader: TokenReader) -> bool:
    before = reader.before
    return before is None or any(stop in before.trail for stop in ".!?…")


def is_capitalised(token: Token | None) -> bool:
    """Whether a word looks like a name: a capital, then a small letter."""
    return token is not None and token.core[:1].isupper() and token.core[1:2].islower()
