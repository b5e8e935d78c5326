"""Numbers with a unit, a percent sign or nothing: `5 kg`, `3°C`, `12.5%`, `-5`, `1990s`."""

from __future__ import annotations

import re

from vivace.text.normalize.lists import word_set
from vivace.text.normalize.numbers import (
    cardinal,
    decimal,
    in_pairs,
    is_one,
    ordinal,
    plural,
    read_digits,
    spell_digits,
    year,
)
from vivace.text.normalize.reading import Reading, core_after, word_before
from vivace.text.normalize.tokens import TokenReader

# Singular and, where it is not that and an "s", plural.
UNITS = {
    "km": "kilometer", "m": "meter", "cm": "centimeter", "mm": "millimeter", "nm": "nanometer",
    "µm": "micrometer", "μm": "micrometer", "kg": "kilogram", "g": "gram", "mg": "milligram",
    "µg": "microgram", "lb": "pound", "lbs": "pound", "oz": "ounce", "mi": "mile",
    "ft": "foot|feet", "yd": "yard", "yds": "yard", "km²": "square kilometer", "m²": "square meter",
    "m2": "square meter", "km2": "square kilometer", "m³": "cubic meter", "cm³": "cubic centimeter",
    "mph": "mile|miles per hour", "kph": "kilometer|kilometers per hour",
    "km/h": "kilometer|kilometers per hour", "m/s": "meter|meters per second",
    "l": "liter", "L": "liter", "ml": "milliliter", "mL": "milliliter", "cl": "centiliter",
    "kB": "kilobyte", "KB": "kilobyte", "MB": "megabyte", "GB": "gigabyte", "TB": "terabyte",
    "PB": "petabyte", "Mbps": "megabit|megabits per second", "Gbps": "gigabit|gigabits per second",
    "MB/s": "megabyte|megabytes per second", "GB/s": "gigabyte|gigabytes per second",
    "Hz": "hertz|hertz", "kHz": "kilohertz|kilohertz", "MHz": "megahertz|megahertz",
    "GHz": "gigahertz|gigahertz", "W": "watt", "kW": "kilowatt", "MW": "megawatt",
    "kWh": "kilowatt hour", "V": "volt", "mA": "milliamp", "mAh": "milliamp hour", "dB": "decibel",
    "hr": "hour", "hrs": "hour", "h": "hour", "min": "minute", "mins": "minute", "sec": "second",
    "secs": "second", "ms": "millisecond", "px": "pixel", "fps": "frame|frames per second",
    "rpm": "revolution|revolutions per minute", "bpm": "beat|beats per minute", "kcal": "calorie",
    "psi": "pound|pounds per square inch", "mol": "mole", "dpi": "dot|dots per inch",
    "°C": "degree|degrees Celsius", "°F": "degree|degrees Fahrenheit",
    "℃": "degree|degrees Celsius", "℉": "degree|degrees Fahrenheit", "°": "degree",
    "yr": "year", "yrs": "year", "wk": "week",
    "ha": "hectare", "ppm": "part|parts per million",
}  # fmt: skip
_PER = {
    "h": "hour", "hr": "hour", "hour": "hour", "s": "second", "sec": "second", "min": "minute",
    "day": "day", "week": "week", "wk": "week", "month": "month", "mo": "month", "year": "year",
    "yr": "year", "kg": "kilogram", "lb": "pound", "person": "person", "m": "meter",
    "night": "night", "user": "user", "mile": "mile", "gallon": "gallon", "gal": "gallon",
}  # fmt: skip
SCALES = ("hundred", "thousand", "million", "billion", "trillion")
_NUMBER = re.compile(
    r"(?P<sign>[-−–+~±≈<>≤≥])?(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
    r"(?P<end>%|‰|[²³]?[A-Za-zµμ°℃℉][A-Za-z°²³2/]{0,5}|°)?"
)
_SIGNS = {
    "-": "minus", "−": "minus", "–": "minus", "+": "plus", "~": "about", "≈": "about",
    "±": "plus or minus", "<": "less than", ">": "more than", "≤": "at most", "≥": "at least",
}  # fmt: skip
_ORDINAL = re.compile(r"(\d{1,3}(?:,\d{3})+|\d{1,9})(?:st|nd|rd|th)", re.IGNORECASE)
_DECADE = re.compile(r"['’]?(\d{1,3}0)['’]?s")
_SHORT_YEAR = re.compile(r"['’](\d\d)")
_BEFORE_YEARS = word_set(
    "in since by until till from of year years circa around after before during late early mid "
    "summer winter spring fall autumn class and to through between january february march april "
    "may june july august september october november december"
)
_BEFORE_CODES = word_set(
    "code pin zip extension id account order passcode password otp ticket booking reservation"
)
_BEFORE_PAIRS = word_set(
    "flight room route highway suite apartment apt bus channel boeing interstate unit"
)
_AFTER_YEARS = word_set("was is has as this does ad bc ce bce")


def read_number(reader: TokenReader) -> Reading | None:
    """A number, with the unit or the scale after it."""
    token = reader.token()
    assert token is not None
    found = _NUMBER.fullmatch(token.core)
    if found is None:
        return None
    end = found["end"]
    if end is None:
        return _read_plain(reader, found)
    if (name := _name_of(end, found["number"])) is None:
        return None
    return Reading(f"{_signed(found)} {name}")


def unit_words(unit: str, number: str) -> str | None:
    """The name of a unit after a number."""
    names = UNITS.get(unit)
    if names is None:
        head, _, per = unit.partition("/")
        if not per or head not in UNITS or per not in _PER:
            return None
        return f"{unit_words(head, number)} per {_PER[per]}"
    singular, _, several = names.partition("|")
    if not several:
        several = f"{singular}s"
    # "mile|miles per hour": the end belongs to both.
    tail = several.partition(" ")[2]
    one = f"{singular} {tail}" if tail and " " not in singular else singular
    return one if is_one(number) else several


def per_words(unit: str) -> str | None:
    """What follows a stroke: `$5/hr`."""
    return _PER.get(unit.lower())


def _name_of(end: str, number: str) -> str | None:
    if end == "%":
        return "percent"
    if end == "‰":
        return "per thousand"
    if end in ("k", "bn"):
        return {"k": "thousand", "bn": "billion"}[end]
    if end == "x":
        return "times"
    if end == "s":
        return "second" if is_one(number) else "seconds"
    return unit_words(end, number)


def _signed(found: re.Match[str]) -> str:
    sign = f"{_SIGNS[found['sign']]} " if found["sign"] else ""
    return sign + decimal(found["number"])


def _read_plain(reader: TokenReader, found: re.Match[str]) -> Reading:
    number = found["number"]
    following = core_after(reader, 1)
    if following == "%":
        return Reading(f"{_signed(found)} percent", 2)
    if following in SCALES:
        return Reading(f"{_signed(found)} {following}", 2)
    if following and (name := unit_words(following, number)) is not None:
        return Reading(f"{_signed(found)} {name}", 2)
    if number.isdecimal() and not found["sign"]:
        return Reading(_read_integer(reader, number, following))
    return Reading(_signed(found))


def _read_integer(reader: TokenReader, digits: str, following: str) -> str:
    before = word_before(reader)
    if before in _BEFORE_CODES and len(digits) >= 3:
        return spell_digits(digits)
    if before in ("call", "dial") and len(digits) == 3:
        return spell_digits(digits)
    if len(digits) == 4:
        return _read_four(reader, digits, before, following)
    if len(digits) == 3 and before in _BEFORE_PAIRS:
        return in_pairs(digits)
    if len(digits) >= 7 and not digits.endswith("000"):
        return spell_digits(digits)
    return read_digits(digits)


def _read_four(reader: TokenReader, digits: str, before: str, following: str) -> str:
    number = int(digits)
    if before in _BEFORE_PAIRS:
        return in_pairs(digits)
    if not 1100 <= number <= 2099:
        return read_digits(digits)
    is_counted = following.isalpha() and following.islower() and following.endswith("s")
    if is_counted and following not in _AFTER_YEARS:
        return read_digits(digits)
    token = reader.token()
    is_parted = token is not None and token.lead == "("
    if before in _BEFORE_YEARS or number >= 1900 or is_parted:
        return year(number)
    return year(number) if following.lower() in _AFTER_YEARS else read_digits(digits)


def read_ordinal(reader: TokenReader) -> Reading | None:
    """`3rd`, `21st`."""
    token = reader.token()
    assert token is not None
    found = _ORDINAL.fullmatch(token.core)
    return Reading(ordinal(int(found[1].replace(",", "")))) if found else None


def read_decade(reader: TokenReader) -> Reading | None:
    """`1990s`, `the '90s`, `'24`."""
    token = reader.token()
    assert token is not None
    if found := _DECADE.fullmatch(token.core):
        words = year(int(found[1])) if len(found[1]) == 4 else cardinal(int(found[1]))
        cut = max(words.rfind(" "), words.rfind("-")) + 1
        return Reading(words[:cut] + plural(words[cut:]), lead=token.lead.rstrip("'’‘"))
    text = token.lead[-1:] + token.core
    if (found := _SHORT_YEAR.fullmatch(text)) and token.trail[:1] not in ("'", "’"):
        words = read_digits(found[1]) if found[1][0] != "0" else f"oh {read_digits(found[1][1])}"
        return Reading(words, lead=token.lead[:-1])
    return None
