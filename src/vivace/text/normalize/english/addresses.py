"""Postal addresses: `1234 Elm St`, `Park Ave. NW`, `78701-1234`."""

from __future__ import annotations

import re

from vivace.text.normalize.english.numbers import cardinal, in_pairs, spell_digits
from vivace.text.normalize.english.tables import word_map, word_set
from vivace.text.normalize.rules import Reading, Token, TokenReader, core_after, is_capitalised

_PLACES = word_map("places")
_STREETS = word_set("street_words")
_HOUSE = re.compile(r"[1-9]\d{2,3}")
_ANY_HOUSE = re.compile(r"[1-9]\d{0,4}")
_ZIP = re.compile(r"(\d{5})-(\d{4})")
_STATE = re.compile(r"[A-Z]{2}|D\.C")
_NUMBERED_STREET = re.compile(r"\d{1,3}(?:st|nd|rd|th)")  # "W 57th St."
_SIDES = {"N": "North", "S": "South", "E": "East", "W": "West"}
_DIRECTIONS = frozenset((*_SIDES, "NE", "NW", "SE", "SW"))
_MAX_NAME = 4  # words of a street's name with its last word


def read_address(reader: TokenReader, token: Token) -> Reading | None:
    if (found := _ZIP.fullmatch(token.core)) and _is_after_state(reader):
        return Reading(f"{spell_digits(found[1])}, {spell_digits(found[2])}")
    if _HOUSE.fullmatch(token.core) and token.is_open and _is_before_street(reader):
        return Reading(in_pairs(token.core))
    if _ANY_HOUSE.fullmatch(token.core) and token.is_open and _is_before_side(reader):
        return Reading(f"{cardinal(int(token.core))} {_SIDES[core_after(reader, 1)]}", 2, trail="")
    is_side = token.core in _SIDES and token.trail in ("", ".")
    if is_side and _is_after_house(reader) and is_capitalised(reader.token(1)):
        return Reading(_SIDES[token.core], trail="")
    if token.core in _SIDES and _NUMBERED_STREET.fullmatch(core_after(reader, 1)):
        street = reader.token(2)
        is_street = street is not None and street.core in _STREETS
        return Reading(_SIDES[token.core]) if is_street else None
    return None


def _is_before_side(reader: TokenReader) -> bool:
    """Whether a side and a street follow a small house number: `77 W. 45th St.`."""
    side, name = reader.token(1), reader.token(2)
    if side is None or side.core not in _SIDES or side.trail != "." or name is None:
        return False
    following = [name, reader.token(3), reader.token(4)]
    is_street = any(one is not None and one.core in _STREETS for one in following)
    return is_street and (name.core[:1].isdigit() or is_capitalised(name))


def _is_after_house(reader: TokenReader) -> bool:
    return reader.before is not None and _HOUSE.fullmatch(reader.before.core) is not None


def _is_after_state(reader: TokenReader) -> bool:
    return reader.before is not None and _STATE.fullmatch(reader.before.core) is not None


def _is_before_street(reader: TokenReader) -> bool:
    """Whether a street follows the house number: `Main St`, `N. Park Avenue`."""
    for place in range(1, _MAX_NAME + 1):
        token = reader.token(place)
        if (
            token is None
            or token.lead
            or not (token.core[:1].isupper() or token.core[:1].isdigit())
        ):
            return False
        if place > 1 and token.core in _STREETS:
            return True
        if not token.is_open and not (token.core in _DIRECTIONS and token.trail == "."):
            return False
    return False


def read_street(reader: TokenReader, token: Token) -> Reading | None:
    """`10 Downing St, London`, `St Paul`: without a full stop."""
    before, following = reader.before, reader.token(1) if token.is_open else None
    is_after_name = before is not None and before.is_open and is_capitalised(before)
    is_numbered = reader.earlier is not None and reader.earlier.core[:1].isdigit()
    if is_after_name and (is_numbered or not is_capitalised(following)):
        return Reading(_PLACES[token.core])
    if token.core == "St" and is_capitalised(following):
        return Reading("Saint")
    return None


def is_direction(token: Token | None) -> bool:
    return token is not None and token.core in _DIRECTIONS
