"""Numbers as English words."""

from __future__ import annotations

import re

from vivace.text.normalize.english.tables import word_list, word_map

_ONES = word_list("ones")
_TENS = word_list("tens")
_SCALES = ("", "thousand", "million", "billion", "trillion", "quadrillion")
_NUMBER_SIGNS = word_map("number_signs")
_ORDINALS = word_map("irregular_ordinals")
_MAX_DIGITS = 3 * len(_SCALES)
_ROMAN_ONES = ("", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX")
_ROMAN_TENS = ("", "X", "XX", "XXX", "XL", "L", "LX", "LXX", "LXXX", "XC")
_ROMAN = {
    "C" * (n // 100) + _ROMAN_TENS[n // 10 % 10] + _ROMAN_ONES[n % 10]: n for n in range(1, 400)
}
SMALL_NUMERALS = frozenset(text.lower() for text, number in _ROMAN.items() if number < 40)
NUMBER = (
    r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,2}(?:,\d{2})+,\d{3}(?:\.\d+)?|\d+(?:\.\d+)?"  # 1,234.50
)


def cardinal(number: int) -> str:
    """`one hundred twenty-three`; numbers above quadrillions digit by digit."""
    if len(str(number)) > _MAX_DIGITS:
        return spell_digits(str(number))
    if number < 20:
        return _ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens] + (f"-{_ONES[ones]}" if ones else "")
    if number < 1000:
        hundreds, rest = divmod(number, 100)
        return f"{_ONES[hundreds]} hundred" + (f" {cardinal(rest)}" if rest else "")
    parts = []
    for scale in reversed(range(len(_SCALES))):
        group = number // 1000**scale % 1000
        if group:
            parts.append(f"{cardinal(group)} {_SCALES[scale]}".strip())
    return " ".join(parts)


def plural_number(words: str) -> str:
    """`sixteens`, `fifties`, `sixes`: several things with a number as their name."""
    if words.endswith("y"):
        return f"{words[:-1]}ies"
    return f"{words}{'es' if words.endswith('x') else 's'}"


def ordinal(number: int) -> str:
    """`twenty-first`."""
    words = cardinal(number)
    cut = max(words.rfind(" "), words.rfind("-")) + 1
    head, last = words[:cut], words[cut:]
    if last.endswith("y"):
        return f"{head}{last[:-1]}ieth"
    return head + _ORDINALS.get(last, f"{last}th")


def spell_digits(digits: str) -> str:
    """`five five five`."""
    return " ".join(_ONES[int(digit)] for digit in digits)


def in_pairs(digits: str) -> str:
    """Years, flights, models: `nineteen eighty-four`, `three eighty`, `one oh one`."""
    if len(digits) not in (3, 4) or digits[0] == "0":
        return read_digits(digits)
    head, pair = digits[:-2], digits[-2:]
    if pair == "00":
        return cardinal(int(digits)) if head.endswith("0") else f"{cardinal(int(head))} hundred"
    if pair[0] == "0":
        return f"{cardinal(int(head))} oh {_ONES[int(pair[1])]}"
    return f"{cardinal(int(head))} {cardinal(int(pair))}"


def year(number: int) -> str:
    """`nineteen oh five`, `two thousand five`, `twenty twenty-four`."""
    if 2000 <= number <= 2009 or not 1010 <= number <= 9999 or number % 1000 == 0:
        return cardinal(number)
    return in_pairs(str(number))


def short_year(digits: str) -> str:
    """The last two digits of a year, or seconds: `oh five`, `twenty-four`."""
    return cardinal(int(digits)) if digits[0] != "0" else f"oh {_ONES[int(digits[1])]}"


def read_digits(digits: str) -> str:
    """A whole number; a number that begins with 0 is read digit by digit."""
    if len(digits) > 1 and digits[0] == "0":
        return spell_digits(digits)
    return cardinal(int(digits)) if len(digits) <= _MAX_DIGITS else spell_digits(digits)


def decimal(text: str) -> str:
    """`1,234.50`, `.5`, `12`: digits after the point are read one by one."""
    whole, _, places = text.replace(",", "").partition(".")
    if not places:
        return read_digits(whole)
    return f"{read_digits(whole) + ' ' if whole else ''}point {spell_digits(places)}"


def is_one(text: str) -> bool:
    return text in ("1", "1.0")


def decade(digits: str) -> str:
    """`1990` as `nineteen nineties`, `20` as `twenties`."""
    return plural_number(year(int(digits)) if len(digits) == 4 else cardinal(int(digits)))


def roman(text: str) -> int | None:
    """The value of a Roman numeral up to 399 in its usual form."""
    return _ROMAN.get(text)


def signed(found: re.Match[str]) -> str:
    """The words of the groups `sign` and `number`: `~5` as "about five"."""
    return sign_of(found) + decimal(found["number"])


def sign_of(found: re.Match[str]) -> str:
    return f"{_NUMBER_SIGNS[found['sign']]} " if found["sign"] else ""
