"""What the words around a number say about it."""

from __future__ import annotations

from vivace.text.normalize.english.tables import word_set
from vivace.text.normalize.rules import Token, TokenReader, word_before

_DETERMINERS = word_set("determiners")
_CONTRACTED = word_set("contracted")  # with "is" or "has": "it's"
_OPEN_TRAILS = ("", ".", *"\"”″'’′")  # nothing, a full stop, inches or feet
_BEFORE_CODES = word_set("before_codes")
_NO_NOUNS = word_set("no_nouns")  # plain words that are no noun and no adjective


def is_attribute(reader: TokenReader, num_tokens: int = 1) -> bool:
    """Whether a quantity of `num_tokens` words describes a noun: `a 5 kg bag`."""
    last, following = reader.token(num_tokens - 1), reader.token(num_tokens)
    if last is None or last.trail not in _OPEN_TRAILS or following is None:
        return False
    before, after = word_before(reader), following.core
    if before in ("a", "an") and (after.islower() or (after.isalnum() and last.trail != ".")):
        return True  # also before a name: "a 5 kg Dell laptop"
    if not after.islower():
        return False
    owner, _, ending = before.replace("’", "'").rpartition("'")
    is_owned = ending == "s" and owner not in _CONTRACTED  # "its owner's", not "it's"
    return (
        (before in _DETERMINERS or is_owned)
        and after not in _NO_NOUNS
        and not after.endswith(("ed", "ly"))
    )


def is_noun(token: Token | None) -> bool:
    """Whether a word in lower case may be a noun or an adjective."""
    return token is not None and token.core.islower() and token.core not in _NO_NOUNS


def is_after_code(reader: TokenReader) -> bool:
    """Whether digits are those of a code: `order 4821`, `Code: 4839`, `your PIN is 4839`."""
    before, earlier = reader.before, reader.earlier
    if before is None:
        return False
    is_further = before.core.isdecimal() or before.core in ("is", "was")  # "code 493 201"
    named = earlier if is_further and before.is_open else before
    return (
        named is not None and named.trail in ("", ".", ":") and named.core.lower() in _BEFORE_CODES
    )
