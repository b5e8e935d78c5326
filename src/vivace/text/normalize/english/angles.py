"""Angles and lengths with primes: `40° 26′ 46″ N`, `45°N`, `6' 2"`, `a 3/8" bolt`."""

from __future__ import annotations

import re
from dataclasses import replace

from vivace.text.normalize.english.context import is_attribute, is_noun
from vivace.text.normalize.english.numbers import NUMBER, cardinal, decimal, is_one
from vivace.text.normalize.english.ranges import read_range, say_fraction
from vivace.text.normalize.english.units import read_number
from vivace.text.normalize.rules import ENDS, Reading, Token, TokenReader, is_capitalised

_MAX_TOKENS = 4  # degrees, minutes, seconds and a direction
_DIRECTIONS = {"N": "north", "S": "south", "E": "east", "W": "west"}
_INCH = r"(?:[\"”″]|'')"
_CROSSES = ("x", "×", "by")
_AFTER_FEET = (*_CROSSES, "tall", "long", "wide", "deep", "high")
_STOPS = rf"(?P<trail>[{ENDS}]*)"
_ANGLE = re.compile(
    rf"(?P<sign>[-−–])?(?P<degrees>{NUMBER})°(?:(?P<minutes>{NUMBER})['’′])?"
    rf"(?:(?P<seconds>{NUMBER}){_INCH})?(?P<direction>[NSEW])?{_STOPS}"
)
_ORDINAL_SIGN = re.compile(r"\dº")
_NEXT = re.compile(r"\d|[NSEW](?![A-Za-z])")
_FEET = re.compile(rf"(\d{{1,3}})['’′]{_STOPS}")
_INCHES = re.compile(rf"(\d{{1,2}}){_INCH}{_STOPS}")
_LENGTH = re.compile(
    rf"(?P<number>(?:{NUMBER})(?:[-–](?:{NUMBER}))?|\d{{1,2}}/\d{{1,2}}|\d{{0,3}}[½¼¾⅛⅜⅝⅞])(?P<sign>[\"”′″]){_STOPS}"
)
_SIDES = re.compile(rf"(\d{{1,3}}){_INCH}?[x×](\d{{1,3}}){_INCH}{_STOPS}")  # 9"x13"


def read_angle(reader: TokenReader, token: Token) -> Reading | None:
    text = token.core + token.trail
    is_quoted = token.lead.endswith(("'", "’", "‘"))  # "'12'"
    if "°" in token.core:
        return _read_degrees(reader, text)
    if (found := _FEET.fullmatch(text)) and not is_quoted:
        return _read_feet(reader, found)
    if found := _LENGTH.fullmatch(text):
        return _read_length(reader, found)
    if (found := _SIDES.fullmatch(text)) and not reader.is_quoted:
        name = "inch" if is_attribute(reader) else "inches"
        sides = f"{decimal(found[1])} by {decimal(found[2])}"
        return Reading(f"{sides} {name}", trail=found["trail"])
    return None


def read_ordinal_sign(reader: TokenReader, token: Token) -> Reading | None:
    """`425º`, `180ºC`: the sign of an ordinal, written for the sign of degrees."""
    if "º" not in token.core or _ORDINAL_SIGN.search(token.core) is None:
        return None
    plain = replace(token, core=token.core.replace("º", "°"))
    return read_angle(reader, plain) or read_range(reader, plain) or read_number(reader, plain)


def _read_degrees(reader: TokenReader, text: str) -> Reading | None:
    """The longest run of words that is one angle."""
    best = None
    for num_tokens in range(1, _MAX_TOKENS + 1):
        found = _ANGLE.fullmatch(text)
        if found is None or found["trail"]:
            break
        if found["minutes"] or found["direction"]:
            best = Reading(_say_angle(found), num_tokens, trail="")
        following = None if found["direction"] else reader.token(num_tokens)
        if following is None or following.lead or not _NEXT.match(following.core):
            break
        text += following.text
    if found and found["trail"] and (found["minutes"] or found["direction"]):
        return Reading(_say_angle(found), num_tokens, found["trail"])
    return best


def _say_angle(found: re.Match[str]) -> str:
    parts = (("degrees", "degree"), ("minutes", "minute"), ("seconds", "second"))
    words = ["minus"] if found["sign"] else []
    numbers = [(found[name], one) for name, one in parts if found[name]]
    words += [_count(number.lstrip("0") or "0", one, f"{one}s") for number, one in numbers]
    return " ".join([*words, *filter(None, [_DIRECTIONS.get(found["direction"])])])


def _read_feet(reader: TokenReader, feet: re.Match[str]) -> Reading | None:
    """`6' 2"`; `6′` alone."""
    following = reader.token(1)
    inches = _INCHES.fullmatch(following.text) if following is not None else None
    if inches:
        words = f"{cardinal(int(feet[1]))} foot {cardinal(int(inches[1]))}"
        return Reading(words, 2, inches["trail"])
    is_single = is_attribute(reader)
    if "′" not in feet[0] and not (is_single or _is_length(reader)):
        return None
    return Reading(_count(feet[1], "foot", "feet", is_single=is_single), trail=feet["trail"])


def _is_length(reader: TokenReader) -> bool:
    """Whether an apostrophe after a number is a prime: `12' x 14'`, `12' tall`, `8', 10'`."""
    before, following = reader.before, reader.token(1)
    if before is not None and before.text in _CROSSES:
        return True
    if following is not None and following.core in _AFTER_FEET:
        return True
    nearby = (before, reader.earlier, following, reader.token(2))
    is_listed = any(one is not None and _FEET.fullmatch(one.core + one.trail) for one in nearby)
    return is_listed and not is_capitalised(before)  # "Saka 12', Rice 30'": minutes


def _read_length(reader: TokenReader, found: re.Match[str]) -> Reading | None:
    """`6" wide`; a quotation mark is an inch only where no quotation is open."""
    token = reader.token()
    is_quoted = reader.is_quoted or (token is not None and re.search('["“”]', token.lead))
    is_quotient = "/" in found["number"] and say_fraction(found["number"]) is None  # "24/38"
    if is_quotient or (found["sign"] in '"”' and is_quoted):
        return None
    names = ("foot", "feet") if found["sign"] == "′" else ("inch", "inches")
    following = reader.token(1) if not found["trail"] else None
    is_before_things = is_noun(following) and following is not None and following.core.endswith("s")
    is_before_name = following is not None and len(following.core) > 1 and following.core.isupper()
    is_single = is_before_things or is_before_name or is_attribute(reader)  # "cut in 3" rounds"
    return Reading(_count(found["number"], *names, is_single=is_single), trail=found["trail"])


def _count(number: str, one: str, several: str, *, is_single: bool = False) -> str:
    if (part := say_fraction(number)) is not None:
        is_single = is_single or number[:1] not in "123456789" or "/" in number
        return f"{part} {one if is_single else several}"
    words = " to ".join(map(decimal, re.split("[-–]", number)))  # "3-5"
    return f"{words} {one if is_single or is_one(number) else several}"
