"""Postal addresses: `1234 Elm St`, `Park Ave. NW`, `78701-1234`."""

from __future__ import annotations

import re

from vivace.text.normalize.english.numbers import in_pairs, spell_digits
from vivace.text.normalize.english.tables import word_map, word_set
from vivace.text.normalize.english.unit_names import UNITS, unit_trail
from vivace.text.normalize.rules import (
    Reading,
    Token,
    TokenReader,
    core_after,
    is_after_name,
    is_capitalised,
    next_in_line,
)

_PLACES = word_map("places")
_STREETS = word_set("street_words")
_HOUSE = re.compile(r"[1-9]\d{2,3}")
_ANY_HOUSE = re.compile(r"[1-9]\d{0,4}½?")
_ZIP = re.compile(r"(\d{5})-(\d{4})")
_STATE = re.compile(r"[A-Z]{2}|D\.C")
_NUMBERED_STREET = re.compile(r"\d{1,3}(?:st|nd|rd|th)")  # "W 57th St."
_SIDES = {"N": "North", "S": "South", "E": "East", "W": "West"}
_DIRECTIONS = frozenset((*_SIDES, "NE", "NW", "SE", "SW"))
_COMPASS = {
    **{letter: name.lower() for letter, name in _SIDES.items()},
    "NE": "northeast",
    "NW": "northwest",
    "SE": "southeast",
    "SW": "southwest",
}
_ROADS = word_set("roads")
_ROAD = re.compile(r"(?:I|US|SR|[A-Z]{2})-\d{1,3}")  # "I-90"
_ROUTE = re.compile(r"\d{1,3}")
_BEFORE_DIRECTIONS = word_set("before_directions")
_AFTER_DIRECTIONS = ("on", "onto", "along", "toward", "towards", "past", "for", "from", "to")
_DISTANCES = ("mi", "km", "miles", "blocks", "yards")
_MAX_NAME = 4  # words of a street's name with its last word


def read_address(reader: TokenReader, token: Token) -> Reading | None:
    if (found := _ZIP.fullmatch(token.core)) and _is_after_state(reader):
        return Reading(f"{spell_digits(found[1])}, {spell_digits(found[2])}")
    if _HOUSE.fullmatch(token.core) and token.is_open and _is_before_street(reader):
        return Reading(in_pairs(token.core))
    if _ANY_HOUSE.fullmatch(token.core) and token.is_open and _is_before_side(reader):
        house = reader.read_alone(token.core)
        return Reading(f"{house} {_SIDES[core_after(reader, 1)]}", 2, trail="")
    if _ROUTE.fullmatch(token.core) and _is_after_road(reader):
        return Reading(in_pairs(token.core))
    is_last = token.trail not in ("", ".")  # "SR 520 W, then"
    if token.core in _COMPASS and (_is_after_route(reader) if is_last else _is_direction(reader)):
        return Reading(_COMPASS[token.core], trail=unit_trail(reader, token.core, 0))
    is_side = token.core in _SIDES and token.trail in ("", ".")
    if is_side and _is_after_house(reader) and is_capitalised(reader.token(1)):
        return Reading(_SIDES[token.core], trail="")
    if is_side and not is_capitalised(reader.before) and _is_before_street(reader):
        return Reading(_SIDES[token.core], trail="")
    if token.core in _SIDES and _NUMBERED_STREET.fullmatch(core_after(reader, 1)):
        street = reader.token(2)
        is_street = street is not None and street.core in _STREETS
        return Reading(_SIDES[token.core]) if is_street else None
    return None


def _is_after_road(reader: TokenReader) -> bool:
    """Whether a number of a road follows, before a direction: `Rte. 66 W.`"""
    road = reader.before
    is_road = road is not None and road.trail in ("", ".") and road.core in _ROADS
    return is_road and core_after(reader, 1) in _COMPASS


def _is_direction(reader: TokenReader) -> bool:
    """Whether a letter is a direction: `I-90 E`, `2 mi. N of the town`, `head S on Elm St.`"""
    before, following = reader.before, reader.token(1)
    if before is None or before.trail not in ("", "."):
        return False
    token = reader.token()
    is_last = following is None or (token is not None and not token.is_open)
    if _is_after_route(reader) or (is_last and before.core in _DISTANCES):
        return True
    word = before.core.lower()
    is_way = word in _BEFORE_DIRECTIONS or before.core in UNITS
    is_place = is_way or (word.isalpha() and word not in ("a", "the"))
    after = "" if following is None else following.core
    return (after == "of" and is_place) or (after in _AFTER_DIRECTIONS and is_way)


def _is_after_route(reader: TokenReader) -> bool:
    """Whether the number of a road precedes the current word: `I-90`, `SR 520`."""
    before, earlier = reader.before, reader.earlier
    if before is None or before.trail not in ("", "."):
        return False
    is_road = earlier is not None and earlier.core in _ROADS
    return _ROAD.fullmatch(before.core) is not None or (
        is_road and _ROUTE.fullmatch(before.core) is not None
    )


def _is_before_side(reader: TokenReader) -> bool:
    """Whether a side and a street follow a house number: `77 W. 45th St.`, `5 W Main St`."""
    side, name = reader.token(1), reader.token(2)
    if side is None or side.core not in _SIDES or side.trail not in ("", ".") or name is None:
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
    before, following = reader.before, next_in_line(reader)
    if before is not None and before.is_open and _NUMBERED_STREET.fullmatch(before.core):
        return Reading(_PLACES[token.core])  # "on 47th St"
    is_numbered = reader.earlier is not None and reader.earlier.core[:1].isdigit()
    if is_after_name(reader) and (is_numbered or not is_capitalised(following)):
        return Reading(_PLACES[token.core])
    if token.core == "St" and is_capitalised(following):
        return Reading("Saint")
    return None


def is_direction(token: Token | None) -> bool:
    return token is not None and token.core in _DIRECTIONS
