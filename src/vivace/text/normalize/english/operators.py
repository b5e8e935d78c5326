"""Signs between spaces that have several meanings: a menu path, a minus, the key of a telephone."""

from __future__ import annotations

import re

from vivace.text.normalize.english.numbers import spell_digits
from vivace.text.normalize.english.tables import word_set
from vivace.text.normalize.rules import Reading, Token, TokenReader, is_beside_operator, word_before

_MENUS = word_set("menus")
_MAX_PATH = 5  # words that are searched for another `>`
_VARIABLE = r"(?:\d+(?:\.\d+)?[xyzntkuvw]|[A-Za-z])(?:[²³]|\^\d+)?"  # 2x, x², x^2
_LEFT = re.compile(rf"(?:.*[(\[{{=+*/-])?{_VARIABLE}|.*\d", re.DOTALL)
_RIGHT = re.compile(rf"\d.*|{_VARIABLE}", re.DOTALL)
_UNSURE = re.compile("a|[A-Z]")  # also a word, or the name of "plan B"
_KEYS = {"*": "star", "#": "pound"}
_BEFORE_KEYS = frozenset(("press", "dial", "hit", "enter", "push", "code"))
_AFTER_KEYS = ("key", "button", "sign", "")
_ENDS = '.,;:!?…)]"”'
_SEQUENCE = re.compile(rf"([*#]\d{{1,6}}[*#]?|\d{{1,8}}#)([{re.escape(_ENDS)}]*)")
_WHOLE = re.compile(r"[*#]\d{1,6}#")


def is_menu_path(reader: TokenReader, before: Token | None, following: Token | None) -> bool:
    """Whether `>` joins menu items: `Open Settings > Privacy`, unlike `Ants > Bees`."""
    if before is None or following is None or not before.is_open or following.lead:
        return False
    if not (_is_item(before.core) and _is_item(following.core)):
        return False
    if before.core in _MENUS or _is_long_path(reader):
        return True
    is_compared = before.core.isupper() and following.core.isupper()  # "USA > UK"
    return reader.earlier is not None and not is_compared


def _is_item(word: str) -> bool:
    """Whether a word may be an item of a menu: a name with a capital, such as `iCloud`."""
    return len(word) > 1 and word[:1].isalpha() and any(map(str.isupper, word))


def _is_long_path(reader: TokenReader) -> bool:
    """Whether another `>` follows after one or more capitalised words."""
    for place in range(2, _MAX_PATH):
        token = reader.token(place)
        if token is None:
            return False
        if token.text in (">", "›"):
            return True
        if not (token.is_open and (token.core[:1].isupper() or token.text == "&")):
            return False
    return False


def is_minus(reader: TokenReader, before: Token | None) -> bool:
    """Whether a dash between spaces subtracts: `10 - 4`, `2x - 5`, `a - b = c`."""
    following = reader.token(1)
    if before is None or following is None or not _LEFT.fullmatch(before.core):
        return False
    if not _RIGHT.fullmatch(following.core):
        return False
    if not (_UNSURE.fullmatch(before.core) or _UNSURE.fullmatch(following.core)):
        return True
    last = reader.token(2)
    is_inside = reader.earlier is not None and reader.earlier.text in ("=", "+", "-")
    return is_inside or (last is not None and last.text in ("=", "+", "<", ">", "≤", "≥"))


def read_key(reader: TokenReader, token: Token) -> Reading | None:
    """The keys of a telephone: `press *`, `the # key`, `dial *67`, `enter 44#`."""
    if "*" not in token.text and "#" not in token.text:
        return None
    before = word_before(reader)
    found = _SEQUENCE.fullmatch(token.text)
    if found and (before in _BEFORE_KEYS or _WHOLE.fullmatch(found[1])):
        words = [_KEYS.get(sign) or spell_digits(sign) for sign in found[1]]
        return Reading(" ".join(words), lead="", trail=found[2])
    sign = token.text.rstrip(_ENDS)
    if sign not in _KEYS or is_beside_operator(reader):
        return None
    following = reader.token(1)
    is_last = following is None or token.text != sign or following.core in _AFTER_KEYS
    if before in _BEFORE_KEYS or (before in ("or", "the", "then", "and") and is_last):
        return Reading(_KEYS[sign], lead="", trail=token.text[1:])
    return None
