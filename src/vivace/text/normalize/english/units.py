"""Numbers with or without a unit: `5 kg`, `3°C`, `12.5%`, `-5`, `1990s`, `10 000`, `3e-8`, `2M`."""

from __future__ import annotations

import re

from vivace.text.normalize.english.context import is_after_code, is_attribute, is_noun
from vivace.text.normalize.english.numbers import (
    NUMBER,
    cardinal,
    decade,
    decimal,
    in_pairs,
    is_one,
    ordinal,
    plural_number,
    read_digits,
    short_year,
    sign_of,
    signed,
    spell_digits,
    year,
)
from vivace.text.normalize.english.tables import word_map, word_set
from vivace.text.normalize.english.unit_names import (
    kitchen_unit,
    per_words,
    plural,
    unit_trail,
    unit_words,
)
from vivace.text.normalize.rules import (
    Reading,
    Token,
    TokenReader,
    core_after,
    is_beside_operator,
    word_before,
)

SCALES = ("hundred", "thousand", "million", "billion", "trillion", "lakh", "crore")
_NUMBER = re.compile(
    rf"(?P<sign>[-−–+~±≈<>≤≥▲▼△▽])?(?P<number>{NUMBER}|\.\d+)"
    r"(?P<end>%|‰|[²³]?[A-Za-zµμ°℃℉Ω][A-Za-z°²³2/·⋅Ωµ]{0,7}|°)?"
)
_COUNT = re.compile(rf"(?P<sign>[~≈<>▲▼△▽])?(?P<number>{NUMBER})(?P<end>[KMBkm])?(?P<plus>\+)?")
_COUNTS = {"K": "thousand", "M": "million", "B": "billion", "k": "thousand", "m": "million"}
_COUNTED = word_set("counted")  # nouns after which "m" is no meter: "36.9m people"
_RACES = word_set("races")
_RESOLUTIONS = ("2", "4", "8")  # "4K videos"
_ENDS = {"%": "percent", "‰": "per thousand", "k": "thousand", "bn": "billion", "x": "times"}
# Without a space: "30s", "4in", "0.5pp".
_ATTACHED = {"s": "second", "in": "inch|inches", "pp": "percentage point"}
_STARS = re.compile(r"(\d(?:\.\d\d?)?)[★☆]")
_GROUPED = re.compile(r"\d{1,3}(?:_\d{3})+")  # of source code
_VERSION = re.compile(r"(\d{1,3})\.(0\d|[1-9]\d)(\+?)")
_VERSIONED = word_set("versioned")
_IN_TWO_WORDS = word_map("units_in_two_words")
_KINDS = frozenset(name.split()[0] for name in _IN_TWO_WORDS)
_FEET = ("ft", "feet", "foot")
_STATE = re.compile(r"[A-Z]{2}|D\.C")
_GROUP = re.compile(r"\d{3}(?:\.\d+)?")
_ORDINAL = re.compile(r"(\d{1,3}(?:,\d{3})+|\d{1,9})(st|nd|rd|th)", re.IGNORECASE)
_DECADE = re.compile(r"['’]?((?:\d\d)?\d0)['’]?s")
_PERIOD = re.compile(r"q[1-4]|h[12]|fy")  # "Q3 2025 results"
_PLURAL = re.compile(r"(\d{1,3})s")
_SHORT_YEAR = re.compile(r"['’](\d\d)")
_MAX_GROUPS = 5  # up to quadrillions
_MAX_EMPHASIZED = 6  # words
_BEFORE_YEARS = word_set("before_years")
_BEFORE_OLD_YEARS = ("a.d", "ad", "c", "ca", "circa", "in", "since", "year")
_CALLS = ("call", "dial")
_BEFORE_PAIRS = word_set("before_pairs")
_AFTER_YEARS = word_set("after_years")


def read_number(reader: TokenReader, token: Token) -> Reading | None:
    """A number with the unit or scale after it."""
    if found := _STARS.fullmatch(token.core):
        is_single = is_noun(reader.token(1)) or is_one(found[1])
        return Reading(f"{decimal(found[1])} {'star' if is_single else 'stars'}")
    if _GROUPED.fullmatch(token.core):
        return Reading(read_digits(token.core.replace("_", "")))
    found = _VERSION.fullmatch(token.core)
    following = core_after(reader, 1)
    is_quantity = following.endswith("s") or unit_words(following, "") is not None
    is_version = word_before(reader) in _VERSIONED and not is_quantity
    if found and is_version:
        words = f"{cardinal(int(found[1]))} point {_say_minor(found[2])}"
        return Reading(f"{words} plus" if found[3] else words)
    found = _NUMBER.fullmatch(token.core)
    if (count := _read_count(reader, token)) is not None or found is None:
        return count
    end = found["end"]
    if end is None:
        return _read_plain(reader, token, found)
    if end in ("C", "F") and "." in found["number"]:
        end = f"°{end}"  # "98.6F"
    if end == "x" and is_beside_operator(reader):
        return Reading(f"{signed(found)} x")  # "3x + 1", not "3x faster"
    if (name := _name_of(end, found["number"])) is None:
        return None
    if end == "°" and (scale := core_after(reader, 1)) in ("C", "F"):  # "98.6° F"
        return Reading(f"{signed(found)} {_name_of(f'°{scale}', found['number'])}", 2)
    if is_attribute(reader):  # "a 12V battery"
        name = _name_of(end, "1")
    return Reading(f"{signed(found)} {name}", trail=unit_trail(reader, end, 0))


def _say_minor(digits: str) -> str:
    """Words of a minor version: `10` of `3.10` as "ten", `04` of `24.04` as "oh four"."""
    return short_year(digits) if digits[0] == "0" else cardinal(int(digits))


def _read_count(reader: TokenReader, token: Token) -> Reading | None:
    """`2.3M views`, `10K+ users`, `1,000+`; `5K` alone may be a race."""
    found = _COUNT.fullmatch(token.core)
    if found is None or not (found["end"] or found["plus"]):
        return None
    following, number = core_after(reader, 1), found["number"]
    if found["end"] in ("k", "K") and following in _RACES and not found["plus"]:
        return Reading(f"{signed(found)} K")  # "a 5k run"
    if found["end"] in ("k", "m") and following not in _COUNTED:
        return None
    is_counted = following == "people" or (following.islower() and following.endswith("s"))
    is_resolution = found["end"] == "K" and number in _RESOLUTIONS
    if found["end"] and "." not in number and not (is_counted and not is_resolution):
        return None
    words = [signed(found), _COUNTS.get(found["end"], ""), "plus" if found["plus"] else ""]
    if following in _KINDS and (kind := _kind_of_unit(reader, 1, "")) is not None:
        trail = unit_trail(reader, "ft", 2)
        return Reading(" ".join(filter(None, [*words, kind])), 3, trail)  # "3.8M sq. mi."
    name = (unit_words(following, "") if following else None) or ""
    trail = unit_trail(reader, following, 1) if name else None
    return Reading(" ".join(filter(None, [*words, name])), 2 if name else 1, trail)


def _name_of(end: str, number: str) -> str | None:
    if end == "p" and len(number) < 3 and number.isdecimal():
        return "penny" if is_one(number) else "pence"  # unlike "720p"
    if end in _ATTACHED:
        return plural(_ATTACHED[end], number)
    if end.startswith("x/"):
        return f"times per {per_words(end[2:])}"
    return _ENDS.get(end) or unit_words(end, number)


def _read_plain(reader: TokenReader, token: Token, found: re.Match[str]) -> Reading:
    number, num_tokens = join_groups(reader, found["number"])
    words = sign_of(found) + decimal(number)
    following = core_after(reader, num_tokens)
    if following == "%":
        return Reading(f"{words} percent", num_tokens + 1)
    if following in SCALES:
        return Reading(f"{words} {following}", num_tokens + 1)
    if following and unit_words(following, number) is not None:
        name = unit_words(following, "1" if is_attribute(reader, num_tokens + 1) else number)
        return Reading(
            f"{words} {name}", num_tokens + 1, trail=unit_trail(reader, following, num_tokens)
        )
    if following and (kitchen := kitchen_unit(reader, number, num_tokens)) is not None:
        return Reading(f"{words} {kitchen[0]}", num_tokens + 1, trail=kitchen[1])
    if following in _KINDS and (name := _kind_of_unit(reader, num_tokens, number)) is not None:
        return Reading(
            f"{words} {name}", num_tokens + 2, trail=unit_trail(reader, "ft", num_tokens + 1)
        )
    if following in ("s", "pp") and "." in number:  # "4.38 s", "0.3 pp"
        return Reading(f"{words} {plural(_ATTACHED[following], number)}", num_tokens + 1)
    if following == "in" and _is_inches(reader, num_tokens):
        return Reading(
            f"{words} {'inch' if is_one(number) else 'inches'}",
            num_tokens + 1,
            trail=unit_trail(reader, following, num_tokens),
        )
    if number.isdecimal() and not found["sign"] and num_tokens == 1:
        return Reading(_read_integer(reader, token, number, following))
    return Reading(words, num_tokens)


def _kind_of_unit(reader: TokenReader, place: int, number: str) -> str | None:
    """`sq ft`, `fl. oz.`, `cu in`: a unit of two words."""
    kind, unit = reader.token(place), reader.token(place + 1)
    if kind is None or unit is None or kind.trail not in ("", ".") or unit.lead:
        return None
    name = _IN_TWO_WORDS.get(f"{kind.core} {unit.core}")
    return None if name is None else plural(name, number)


def _is_inches(reader: TokenReader, place: int) -> bool:
    """Whether "in" after a number is a unit: `6 ft 2 in`, `5 in. wide`."""
    unit, following = reader.token(place), reader.token(place + 1)
    is_dotted = unit is not None and unit.trail == "." and following is not None
    before = reader.before
    is_after_feet = before is not None and before.core in _FEET
    is_size = before is not None and before.text in ("x", "×", "by")
    return is_after_feet or is_size or (is_dotted and unit_trail(reader, "in", place) == "")


def join_groups(reader: TokenReader, number: str) -> tuple[str, int]:
    """A number whose thousands are separated by spaces, and its words: `10 000`, `12 345 678`.

    Other numbers of three digits, such as `101 102`, stay apart.
    """
    if not number.isdecimal() or len(number) > 3 or number[0] == "0":
        return number, 1
    groups: list[str] = []
    is_code = is_after_code(reader)
    while not is_code and len(groups) < _MAX_GROUPS:
        if not _GROUP.fullmatch(group := core_after(reader, len(groups) + 1)):
            break
        groups.append(group)
        if "." in group:
            break
    is_one_number = "000" in groups or (len(number) < 3 and len(groups) > 1)
    return (number + "".join(groups), len(groups) + 1) if is_one_number else (number, 1)


def _read_integer(reader: TokenReader, token: Token, digits: str, following: str) -> str:
    before = word_before(reader) or _marked_before(reader)
    if before == "in" and reader.earlier is not None and reader.earlier.core == "ending":
        return spell_digits(digits)  # "an account ending in 4821"
    if len(digits) == 4 and token.lead.endswith("*") and not _is_emphasized(reader, token):
        return spell_digits(digits)  # an account: "*4821"
    if len(digits) >= 3 and (is_after_code(reader) or (before in _CALLS and len(digits) == 3)):
        return spell_digits(digits)
    if len(digits) == 4:
        return _read_four(reader, token, digits, before, following)
    if len(digits) == 5 and reader.before is not None and _STATE.fullmatch(reader.before.core):
        return spell_digits(digits)  # a ZIP code after a state
    if len(digits) == 3 and before in _BEFORE_PAIRS:
        return in_pairs(digits)
    if len(digits) >= 7 and not digits.endswith("000"):
        return spell_digits(digits)
    return read_digits(digits)


def _is_emphasized(reader: TokenReader, token: Token) -> bool:
    """Whether an asterisk before a number begins Markdown: `**1500 people**`, `*1500 people*`."""
    phrase = map(reader.token, range(_MAX_EMPHASIZED))
    return token.lead.endswith("**") or any(one is not None and "*" in one.trail for one in phrase)


def _marked_before(reader: TokenReader) -> str:
    """The abbreviation or label before a number: `ext. 204`, `Code: 4839`."""
    before = reader.before
    return before.core.lower() if before is not None and before.trail in (".", ":") else ""


def _is_flight(reader: TokenReader) -> bool:
    """`Flight UA 1549`."""
    before, earlier = reader.before, reader.earlier
    is_airline = before is not None and _STATE.fullmatch(before.core) is not None
    return is_airline and earlier is not None and earlier.core.lower() in _BEFORE_PAIRS


def _read_four(reader: TokenReader, token: Token, digits: str, before: str, following: str) -> str:
    number = int(digits)
    if _PERIOD.fullmatch(before):
        return year(number)
    if before in _BEFORE_PAIRS or _is_flight(reader):
        return in_pairs(digits)
    if not (1010 if before in _BEFORE_OLD_YEARS else 1100) <= number <= 2099:
        return read_digits(digits)
    is_counted = following.isalpha() and following.islower() and following.endswith("s")
    if following in _COUNTED or (is_counted and following not in _AFTER_YEARS):
        return read_digits(digits)
    if before in _BEFORE_YEARS or number >= 1900 or token.lead == "(":
        return year(number)
    return year(number) if following.lower() in _AFTER_YEARS else read_digits(digits)


def read_ordinal(reader: TokenReader, token: Token) -> Reading | None:
    """`3rd`, `21st`."""
    if (found := _ORDINAL.fullmatch(token.core)) is None:
        return None
    words = ordinal(int(found[1].replace(",", "")))
    ending = found[2].lower() if found[2].islower() else words[-2:]
    return Reading(words) if ending == found[2].lower() else None  # "4ND" is a postcode


def read_plural(reader: TokenReader, token: Token) -> Reading | None:
    """Things that are named by a number: `Boeing 737s`, `two 747s`, `iPhone 15s`, `the 9s`."""
    found = _PLURAL.fullmatch(token.core)
    if found is None or _DECADE.fullmatch(token.core):
        return None
    digits = found[1]
    if len(digits) == 3:
        return None if digits.endswith("0") else Reading(plural_number(in_pairs(digits)))
    has_name = _is_after_name(reader) or word_before(reader) == "the"
    return Reading(plural_number(cardinal(int(digits)))) if has_name else None


def _is_after_name(reader: TokenReader) -> bool:
    """Whether a name stands before: `iPhone`, `MAX`. The first word of a sentence may be a verb."""
    before = reader.before
    if before is None or not before.is_open:
        return False
    earlier = reader.earlier
    is_first = earlier is None or not earlier.is_open or not earlier.core[-1:].isalnum()
    is_first = is_first or before.lead != ""
    return any(letter.isupper() for letter in before.core[is_first:])


def read_decade(reader: TokenReader, token: Token) -> Reading | None:
    """`1990s`, `the '90s`, `'24`."""
    found = _DECADE.fullmatch(token.core)
    if found and len(found[1]) == 2 and word_before(reader) in ("a", "an"):
        return None  # "a 30s delay"
    if found:
        return Reading(decade(found[1]), lead=token.lead.rstrip("'’‘"))
    text = token.lead[-1:] + token.core
    if (found := _SHORT_YEAR.fullmatch(text)) and token.trail[:1] not in ("'", "’"):
        return Reading(short_year(found[1]), lead=token.lead[:-1])
    return None
