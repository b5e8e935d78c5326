"""Powers: `3e8`, `10⁻³`, `×10⁹/L`, `x⁴`, `10 s⁻¹`."""

from __future__ import annotations

import re

from vivace.text.normalize.english.numbers import NUMBER, cardinal, decimal, sign_of, signed
from vivace.text.normalize.english.unit_names import per_words, unit_words
from vivace.text.normalize.rules import Reading, Token, TokenReader, core_after

_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺"
_PLAIN_DIGITS = str.maketrans(_SUPERSCRIPTS, "0123456789-+")
_SCIENTIFIC = re.compile(
    r"(?P<sign>[-−+])?(?P<number>\d+\.\d+(?=[eE])|\d+(?=e|E[-−+]))[eE](?P<power>[-−+]?\d{1,3})"
)
_INVERSE = re.compile("([A-Za-zµ]{1,3})⁻([¹²³])")  # "m s⁻¹"
_INVERSE_POWERS = {"¹": "", "²": "²", "³": "³"}
_POWER = re.compile(
    rf"(?P<sign>[-−+])?(?:(?P<number>{NUMBER})|(?P<factor>\d{{1,3}})?(?P<name>[A-Za-z]{{1,2}}))"
    rf"(?:\^(?P<power>[-−+]?\d{{1,4}})|(?P<raised>[{_SUPERSCRIPTS}]{{1,4}}))"
)
_TIMES_TEN = re.compile(
    rf"(?P<sign>[-−+])?(?P<number>{NUMBER})?[×x·]10"  # also "×10⁹/L" after a space
    r"(?:\^(?P<power>[-−+]?\d{1,3})|(?P<raised>[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]{1,3}))(?:/(?P<per>[A-Za-zµ]{1,3}))?"
)
_NAMED_POWERS = {"2": "squared", "3": "cubed"}


def read_power(reader: TokenReader, token: Token) -> Reading | None:
    """`3e8`, `9.1e-31 kg`, `10⁻³`, `10^-6`, `x⁴`."""
    if found := _SCIENTIFIC.fullmatch(token.core):
        words = f"{signed(found)} times ten {_raised(found['power'])}"
        name = unit_words(core_after(reader, 1), "")
        return Reading(f"{words} {name}", 2) if name else Reading(words)
    if found := _TIMES_TEN.fullmatch(token.core):
        power = found["power"] or found["raised"].translate(_PLAIN_DIGITS)
        words = f"{signed(found) if found['number'] else ''} times ten {_raised(power)}"
        per = f" per {per_words(found['per'])}" if found["per"] else ""
        return Reading(words.strip() + per)
    if (found := _INVERSE.fullmatch(token.core)) and _is_after_quantity(reader):
        return Reading(f"per {per_words(found[1] + _INVERSE_POWERS[found[2]])}")
    found = _POWER.fullmatch(token.core)
    if found is None or found["raised"] in ("¹", "²", "³"):
        return None  # a footnote; "squared" and "cubed" belong to other rules
    power = found["power"] or found["raised"].translate(_PLAIN_DIGITS)
    if not power.lstrip("-−+").isdecimal():
        return None
    name = found["name"] or ""
    if len(name) > 1 and unit_words(name, ""):
        return None  # "cm^2"
    number = found["number"] or found["factor"]
    base = " ".join([*([decimal(number)] if number else []), *name])
    return Reading(f"{sign_of(found)}{base} {_raised(power)}")


def _is_after_quantity(reader: TokenReader) -> bool:
    """Whether a number or a unit precedes the word: `10 s⁻¹`, `6×10²³ mol⁻¹`, `m s⁻¹`."""
    before = reader.before
    if before is None or not before.is_open:
        return False
    is_unit = unit_words(before.core, "") is not None or _INVERSE.fullmatch(before.core)
    return bool(is_unit) or before.core[-1:].isdigit() or before.core[-1:] in _SUPERSCRIPTS


def _raised(power: str) -> str:
    sign = "minus " if power[0] in "-−" else ""
    if power in _NAMED_POWERS:
        return _NAMED_POWERS[power]
    return f"to the power of {sign}{cardinal(int(power.lstrip('-−+')))}"
