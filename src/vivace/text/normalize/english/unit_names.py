"""Names of units: `kg`, `km/h`, `kg/m³`, `N·m`, `m/s²`, `l/100 km`."""

from __future__ import annotations

import re

from vivace.text.normalize.english.context import is_noun
from vivace.text.normalize.english.numbers import cardinal, is_one
from vivace.text.normalize.english.tables import word_map, word_set
from vivace.text.normalize.rules import Reading, Token, TokenReader, core_after, word_before

# Singular, and an irregular plural after "|".
UNITS = word_map("units")
_PER = word_map("per")
_POWERS = {"²": ("square", "squared"), "³": ("cubic", "cubed")}
_LENGTHS = frozenset(("km", "m", "cm", "mm", "µm", "nm", "mi", "ft", "yd", "in"))
_SAME_SIGNS = str.maketrans("μΩ", "µΩ")  # letters of Greek and signs of units
_PRODUCT = re.compile("[·⋅]")
_STROKE_OR_DOT = re.compile("[/·⋅]")
_COUNTED = re.compile(r"(\d{1,4})([A-Za-z]{0,3})")  # "100km" of "l/100km"
_HEAD = re.compile(r"[A-Z]{2,4}|[a-z]{3,}s|tok|req")
_MEASURES = word_set("measures")  # after a stroke: "CFU/mL", "days/yr"
_MONEY = re.compile(r"([$€£¥])/(\S+)")
_CURRENCIES = word_map("signs")
_BEFORE_ONE = frozenset(("per", "a", "one", "each", "every"))
_DOTTED_UNITS = word_set("dotted_units")
_DIRECTIONS = ("N", "S", "E", "W", "NE", "NW", "SE", "SW")
_KITCHEN = {"c": "cup", "C": "cup", "T": "tablespoon", "t": "teaspoon"}  # with a full stop
LONE_UNITS = word_set("lone_units")  # read as units without a number; no English word among them
SPELLED_UNITS = word_set("spelled_units")  # read as letters without a number


def unit_words(unit: str, number: str) -> str | None:
    """The name of a unit after a number. The number "" gives the plural."""
    unit = unit.translate(_SAME_SIGNS).replace("^2", "²").replace("^3", "³")
    if unit in UNITS:
        return plural(UNITS[unit], number)
    head, *below = unit.split("/")
    factors = _PRODUCT.split(head)
    names = [*(_name(factor) for factor in factors[:-1]), _name(factors[-1], number)]
    pers = [_per_name(part) for part in below]
    if None in names or None in pers or len(names) + len(pers) < 2:
        return names[0] if len(names) == 1 and not below else None
    return " per ".join([" ".join(map(str, names)), *map(str, pers)])


def unit_trail(reader: TokenReader, unit: str, place: int) -> str | None:
    """The signs after a unit, without the full stop of its abbreviation: `5 ft. tall`."""
    last, following = reader.token(place), reader.token(place + 1)
    if last is not None and last.trail == ".," and unit in _DOTTED_UNITS:  # "190 lbs., and"
        return ","
    if last is None or last.trail != "." or following is None:
        return None
    is_inside = (
        following.core[:1].islower()
        or following.text == "="
        or (
            unit in _DOTTED_UNITS
            and (following.core[:1].isdigit() or following.core in _DIRECTIONS)
        )
    )
    return "" if is_inside else None


def kitchen_unit(reader: TokenReader, number: str, place: int) -> tuple[str, str] | None:
    """The unit of `1 c. milk` or `2 T. sugar`, and the signs after it."""
    unit, following = reader.token(place), reader.token(place + 1)
    if len(number) > 1 or unit is None or unit.core not in _KITCHEN or unit.lead:
        return None
    is_ingredient = unit.trail == "." and is_noun(following)
    if not is_ingredient and not unit.trail.startswith(".)"):
        return None
    return plural(_KITCHEN[unit.core], number), unit.trail[1:]


def per_words(unit: str) -> str:
    """The word for what stands after a slash: `$5/hr`, `$5/bbl`, `$5/ticket`."""
    return _PER.get(unit.lower()) or _name(unit) or unit


def read_unit(reader: TokenReader, token: Token) -> Reading | None:
    """A unit without a number: `in km/h`, `the limit in mg/dL`, `€/kWh`."""
    core = token.core
    if core in SPELLED_UNITS:
        return Reading(" ".join(core.upper()))
    if found := _MONEY.fullmatch(core):
        per = _per_name(found[2]) or per_words(found[2])
        return Reading(f"{_CURRENCIES[found[1]]} per {per}")
    if core in LONE_UNITS:
        is_single = word_before(reader) in _BEFORE_ONE
        return Reading(str(unit_words(core, "1" if is_single else "")))
    is_compound = _STROKE_OR_DOT.search(core, 1) is not None
    return _read_compound(reader, core) if is_compound else None


def _read_compound(reader: TokenReader, core: str) -> Reading | None:
    """`km/h`, or `l/100 km` in two words."""
    head, _, below = core.partition("/")
    if head in UNITS and below.isdecimal():
        following = core_after(reader, 1)
        if (name := _per_name(below + following)) is not None and following:
            return Reading(f"{unit_words(head, '')} per {name}", 2)
    trail = unit_trail(reader, below, 0)  # "trips/wk. from"
    if (words := unit_words(core, "")) is not None:
        return Reading(words, trail=trail)
    if not _HEAD.fullmatch(head) or below not in _MEASURES:
        return None
    return Reading(
        f"{reader.read_alone(head)} per {_per_name(below)}", trail=trail
    )  # "CFU/mL", "days/yr"


def plural(names: str, number: str) -> str:
    """The name of a unit from a table, for a number: "foot|feet"."""
    singular, _, several = names.partition("|")
    if not several:
        several = f"{singular}s"
    # "mile|miles per hour": "per hour" belongs to both forms.
    tail = several.partition(" ")[2]
    one = f"{singular} {tail}" if tail and " " not in singular else singular
    return one if is_one(number) else several


def _name(unit: str, number: str = "1") -> str | None:
    """The name of a unit with an exponent or without one; singular by default."""
    if unit in UNITS:
        return plural(UNITS[unit], number)
    base, power = unit[:-1], unit[-1:]
    if power not in _POWERS or base not in {**UNITS, **_PER}:
        return None
    before, after = _POWERS[power]
    name = plural(UNITS.get(base) or _PER[base], number)
    return f"{before} {name}" if base in _LENGTHS else f"{name} {after}"


def _per_name(unit: str) -> str | None:
    """The name of a unit below the stroke: `h`, `m³`, `s²`, `100km`."""
    if counted := _COUNTED.fullmatch(unit):
        name = _name(counted[2], counted[1])
        return f"{cardinal(int(counted[1]))} {name}" if name else None
    return _PER.get(unit) or _name(unit)
