"""Fractions, ranges, ratios and sizes."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace

from vivace.text.normalize.english.context import is_after_code, is_noun
from vivace.text.normalize.english.numbers import (
    NUMBER,
    cardinal,
    decimal,
    in_pairs,
    ordinal,
    short_year,
    spell_digits,
    year,
)
from vivace.text.normalize.english.tables import word_map, word_set
from vivace.text.normalize.english.unit_names import (
    UNITS,
    kitchen_unit,
    per_words,
    unit_trail,
    unit_words,
)
from vivace.text.normalize.rules import Reading, Token, TokenReader, core_after, word_before

_FRACTION = re.compile(r"(\d{1,4})[/⁄](\d{1,4})(?:rds?|ths?)?")
_SIGNS = "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
_LONE_SIGNS = frozenset(_SIGNS)
_WITH_SIGN = re.compile(rf"(\d*)([{_SIGNS}])")
_FACTOR = re.compile(rf"([-−])?([{_SIGNS}])([a-z][²³]?)")  # "½x²"
_PART = rf"\d{{1,2}}-\d{{1,2}}/\d{{1,2}}|\d{{1,3}}/\d{{1,3}}|\d*[{_SIGNS}]"  # 1-1/2, 3/4, 2½
_PART_AND_END = re.compile(rf"({_PART})(%|[A-Za-z°]{{1,5}}|(?:-[A-Za-z]+)+)")
_PARTS_RANGE = re.compile(  # 1-1½, 1½–2, 1/2-3/4 cup
    rf"(?P<low>{_PART}|{NUMBER})[-–—](?P<high>{_PART}|{NUMBER})(?P<end>%|(?:-[a-z]+)*)"
)
_JOINED_PART = re.compile(r"(\d{1,2})-(\d{1,2}/\d{1,2})")
_PARTS = {2: "half", 4: "quarter"}
_BEFORE_COUNTS = word_set("before_counts")  # "step 1/5"
_BEFORE_PAIRS = word_set("before_pairs")
_AFTER_SEASONS = word_set("after_seasons")
_MAX_SHARE = 150  # of `24/38`; `401/403` are two codes
_DENOMINATORS = frozenset((2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 20, 32, 64, 100, 1000))
_SPECIAL = word_map("fractions")
_MARKS = word_set("after_marks")
_AFTER_PARTS = word_set("after_parts")
_RANGE = re.compile(rf"({NUMBER})(%?)[-–—~]({NUMBER})(%|[A-Za-zµ°][A-Za-z°²³/]{{0,4}})?")
_UNIT = r"[A-Za-zµ°][A-Za-z°²³/]{0,4}"
_SAME_UNIT = re.compile(rf"({NUMBER})({_UNIT})[-–—~]({NUMBER})\2")  # 20°C–25°C
_NUMBERED = re.compile(r"\d{1,4}-\d{1,4}")  # "No. 19-1392"
_LOCAL_PHONE = re.compile(r"[2-9]\d\d-\d{3,7}[1-9]")  # with more digits than `555-0123`
_VERSES = re.compile(r"(\d{1,3}):(\d{1,3})[-–](\d{1,3})")
_SEASON = re.compile(r"((?:19|20)\d\d)/(\d\d)")
_SCORE = re.compile(r"(\d{1,3}\.\d{1,2})/(\d{1,3}(?:\.\d{1,2})?)")
_PAIR = re.compile(rf"({NUMBER})([A-Za-z°]{{1,4}})/({NUMBER})([A-Za-z°]{{1,4}})")
_RATIO = re.compile(rf"({NUMBER}):({NUMBER})(?::({NUMBER}))?")
_MINUTES = re.compile(r"([2-5]\d):([0-5]\d)")  # "a 5K in 25:30"
_BEFORE_MINUTES = ("in", "at", "under", "until")
_CALCULATIONS = word_set("calculations")
_CHAPTER = re.compile(r"(\d{1,3}):(\d{1,3})")
_BOOKS = word_map("bible")
_WITH_VERSES = frozenset((*_BOOKS.values(), *_BOOKS, "Psalm", "Quran", "Qur'an", "Surah"))
_EDITION = re.compile(r"(\d{3,5}):((?:19|20)\d\d)")  # "ISO 9001:2015"
_AFTER_PREFIX = re.compile(r"([A-Za-z]{2,})-(\d{1,3}/\d{1,3})")  # "post-9/11"
_LIMITED = re.compile(r"([<>≤≥~≈±])(.+)")
_LIMITS = word_map("number_signs")
_SIZE = re.compile(rf"({NUMBER})[x×]({NUMBER})(?:[x×]({NUMBER}))?(-?[A-Za-z]{{0,4}})")
_SIDES = ("L", "W", "H", "D")  # length, width, height and depth: `12" L x 8" W`
_INCHES = ('"', "”", "″")
_MASS = re.compile(rf"(?:{NUMBER})(?:g|kg|mg|ml|mL|l|L|oz|lb)")
_RATE = re.compile(rf"({NUMBER})/(min|hour|hr|day|night|week|wk|month|mo|year|yr|person|user)")
_TIE = re.compile(r"(\d)[-–](\d)\((\d{1,2})\)([.,;:!?]*)")  # 7-6(5)
_ORDINALS = re.compile(r"(\d{1,3})(?:st|nd|rd|th)[-–—](\d{1,3})(?:st|nd|rd|th)")


def read_fraction(reader: TokenReader, token: Token) -> Reading | None:
    """`1/2`, `1 1/2`, `2½`, `24/7`."""
    if token.core in _SPECIAL:
        return Reading(_SPECIAL[token.core])
    if token.core.isalpha():
        return None
    if found := _WITH_SIGN.fullmatch(token.core):
        return _with_unit(reader, _sign_parts(found[2]) or (0, 1), found[1])
    if found := _FACTOR.fullmatch(token.core):
        minus = "minus " if found[1] else ""
        factor = _fraction(*(_sign_parts(found[2]) or (0, 1)))
        return Reading(f"{minus}{factor} {reader.read_alone(found[3])}")
    if found := _AFTER_PREFIX.fullmatch(token.core):
        return Reading(f"{found[1]} {reader.read_alone(found[2])}")
    if (ended := _read_part_of(reader, token.core)) is not None:
        return ended
    if (found := _LIMITED.fullmatch(token.core)) and (words := say_fraction(found[2])):  # "<1/10"
        return Reading(f"{_LIMITS[found[1]]} {words}")
    if token.core.isdecimal() and len(token.core) <= 3:
        following = core_after(reader, 1)
        if (parts := _sign_parts(following) or _split(following)) is not None:
            return _with_unit(reader, parts, token.core, num_tokens=2)
    if (words := _read_out_of(reader, token)) is not None:
        return Reading(words)
    if (parts := _split(token.core)) is not None:
        return _with_unit(reader, parts)
    return None


def _read_part_of(reader: TokenReader, text: str) -> Reading | None:
    """`5½%`, `6½-inch`, `1/4-inch`, `1-1/2`, `1-1½ cups`, `1/2–3/4 cup`."""
    if found := _PART_AND_END.fullmatch(text):
        number, end = say_fraction(found[1]), found[2]
        kind, *others = end.removeprefix("-").split("-")
        name = "percent" if end == "%" else unit_words(kind, "1" if end[0] == "-" else "")
        if number is None or (name is None and end[0] != "-"):
            return None
        return Reading(" ".join([number, name or kind, *others]))
    if _JOINED_PART.fullmatch(text):
        number = say_fraction(text)
        return None if number is None else _add_unit(reader, number, "", 1)
    if (found := _PARTS_RANGE.fullmatch(text)) is None:
        return None
    low, high = (say_fraction(found[end]) for end in ("low", "high"))
    if low is None and high is None:
        return None
    words = f"{low or decimal(found['low'])} to {high or decimal(found['high'])}"
    end = " percent" if found["end"] == "%" else found["end"].replace("-", " ")
    return Reading(words + end) if end else _add_unit(reader, words, "", 1)


def _read_out_of(reader: TokenReader, token: Token) -> str | None:
    """The mark `8/10`, `24/38`, `3/5 stars`, and the blood pressure `120/80`."""
    found = _FRACTION.fullmatch(token.core)
    if found is None or found[1].startswith("0") or not token.core[-1].isdecimal():
        return None
    above, below, following = int(found[1]), int(found[2]), core_after(reader, 1)
    if following == "time" and below in (2, 4, 8):  # of music
        return f"{cardinal(above)} {cardinal(below)}"
    is_whole = above == below and below in (3, 4, 5, 10, 100)
    is_mark = 1 < above <= below and below in (10, 100) and following not in _AFTER_PARTS
    if above <= below and word_before(reader) in _BEFORE_COUNTS:
        return f"{cardinal(above)} of {cardinal(below)}"
    if _is_pair(reader, above, below, following):
        return f"{cardinal(above)} {cardinal(below)}"
    is_share = above <= below <= _MAX_SHARE and below not in _DENOMINATORS
    is_share = is_share and (above > 12 or below > 31)  # no date
    is_share = is_share and not (following and unit_words(following, "")) and not _is_name(reader)
    if is_whole or is_mark or is_share or (above <= below and following in _MARKS):
        return f"{cardinal(above)} out of {cardinal(below)}"
    is_pressure = 60 <= above <= 260 and 30 <= below <= 160
    if is_pressure and (following == "mmHg" or _is_after_pressure(reader)):
        return f"{cardinal(above)} over {cardinal(below)}"
    return None


def _is_after_pressure(reader: TokenReader) -> bool:
    """`BP 120/80`, `blood pressure: 120/80`, `my BP is 120/80`."""
    before, earlier = reader.before, reader.earlier
    is_linked = before is not None and before.core in ("is", "was", "of", "at")
    named = earlier if is_linked else before
    return named is not None and named.core.lower() in ("bp", "pressure")


def _is_pair(reader: TokenReader, above: int, below: int, following: str) -> bool:
    """Whether two numbers are said one after the other: `a 60/40 split`, `the 23/24 season`."""
    is_split = above + below == 100 and below not in (0, 97, 98, 99)
    is_season = above + 1 == below and above > 9 and following in _AFTER_SEASONS
    return is_split or is_season or (above == 20 and following == "vision")


def _is_name(reader: TokenReader) -> bool:
    return word_before(reader) in _BEFORE_PAIRS


def _with_unit(
    reader: TokenReader, parts: tuple[int, int], whole: str = "", num_tokens: int = 1
) -> Reading:
    """A fraction and the unit after it: `1/2 tsp`, `1½ lb`."""
    return _add_unit(reader, _mixed(whole, *parts), "" if whole else "1", num_tokens)


def _add_unit(reader: TokenReader, words: str, number: str, num_tokens: int) -> Reading:
    """Add the unit that may follow; the full stop of its abbreviation is left out."""
    unit = core_after(reader, num_tokens)
    if (name := unit_words(unit, number) if unit else None) is None:
        kitchen = kitchen_unit(reader, number, num_tokens) if unit else None
        if kitchen is None:
            return Reading(words, num_tokens)
        return Reading(f"{words} {kitchen[0]}", num_tokens + 1, kitchen[1])
    return Reading(f"{words} {name}", num_tokens + 1, unit_trail(reader, unit, num_tokens))


def _sign_parts(sign: str) -> tuple[int, int] | None:
    """The parts of `½`; None for other text."""
    if sign not in _LONE_SIGNS:
        return None
    above, _, below = unicodedata.normalize("NFKC", sign).partition("⁄")
    return int(above), int(below)


def _split(text: str) -> tuple[int, int] | None:
    found = _FRACTION.fullmatch(text)
    if found is None or found[1].startswith("0") or found[2].startswith("0"):
        return None
    above, below = int(found[1]), int(found[2])
    return (above, below) if above < below and below in _DENOMINATORS else None


def say_fraction(text: str) -> str | None:
    """`3/8`, `½`, `2½`; None if the text is no fraction."""
    if found := _WITH_SIGN.fullmatch(text):
        return _mixed(found[1], *(_sign_parts(found[2]) or (0, 1)))
    if found := _JOINED_PART.fullmatch(text):
        joined = _split(found[2])
        return None if joined is None else _mixed(found[1], *joined)
    parts = _split(text)
    return None if parts is None else _fraction(*parts)


def _mixed(whole: str, above: int, below: int) -> str:
    if whole:
        part = "a half" if (above, below) == (1, 2) else _fraction(above, below)
        return f"{decimal(whole)} and {part}"
    return _fraction(above, below)


def _fraction(above: int, below: int) -> str:
    part = _PARTS.get(below) or ordinal(below)
    if above > 1:
        part = "halves" if below == 2 else f"{part}s"
    return f"{cardinal(above)} {part}"


def read_range(reader: TokenReader, token: Token) -> Reading | None:
    """`10-20`, `1990–2000`, `3-5 kg`, `16:9`, `4x4`, `1920x1080`, `9.8/10`."""
    if token.core[:1] in ("~", "≈") and _RANGE.fullmatch(token.core, 1):  # "~2-3 weeks"
        reading = read_range(reader, replace(token, core=token.core[1:]))
        return None if reading is None else replace(reading, words=f"about {reading.words}")
    if found := _RANGE.fullmatch(token.core):
        low, high, unit = found[1], found[3], found[4]
        if word_before(reader) in ("boeing", "airbus"):
            return Reading(f"{in_pairs(low)} {in_pairs(high)}")
        if is_after_code(reader) and len(low) > 2 and not unit:  # "Code: 493-201"
            return Reading(f"{spell_digits(low)}, {spell_digits(high)}")
        if _NUMBERED.fullmatch(token.core) and _is_after_number_sign(reader):
            return Reading(f"{in_pairs(low)} dash {in_pairs(high)}")
        if _LOCAL_PHONE.fullmatch(token.core) and not is_noun(reader.token(1)):
            return Reading(f"{spell_digits(low)}, {spell_digits(high)}")
        words = f"{_bound(low, high)} to {_bound(high, low)}"
        if unit == "%" or found[2]:
            return Reading(f"{words} percent")
        if unit:
            name = unit_words(unit, high)
            return None if name is None else Reading(f"{words} {name}")
        return _add_unit(reader, words, high, 1)
    if found := _RATE.fullmatch(token.core):
        return Reading(f"{decimal(found[1])} per {per_words(found[2])}")
    if (found := _TIE.fullmatch(token.core + token.trail)) is not None:
        words = f"{decimal(found[1])} to {decimal(found[2])}, {decimal(found[3])}"
        return Reading(words, trail=found[4])
    if found := _ORDINALS.fullmatch(token.core):
        return Reading(f"{ordinal(int(found[1]))} to {ordinal(int(found[2]))}")
    if (found := _SIZE.fullmatch(token.core)) and not token.core.startswith("0x"):
        numbers = [decimal(found[n]) for n in (1, 2, 3) if found[n]]
        if not found[4] and _is_calculation(reader):
            return Reading(" times ".join(numbers))
        unit = found[4].removeprefix("-")
        name = unit_words(unit, "1" if "-" in found[4] else found[2]) if unit else ""
        name = {"inch": "inch", "foot": "foot", "in": "inch"}.get(unit, name)
        words = f"{' by '.join(numbers)} {name}".strip()
        return None if name is None else Reading(words, trail=unit_trail(reader, unit, 0))
    if (found := _CHAPTER.fullmatch(token.core)) and _is_after_book(reader):
        return Reading(f"{cardinal(int(found[1]))} {cardinal(int(found[2]))}")
    if found := _EDITION.fullmatch(token.core):
        return Reading(f"{decimal(found[1])}, {year(int(found[2]))}")
    if found := _SCORE.fullmatch(token.core):  # also "6.2/8 GB"
        return _add_unit(reader, f"{decimal(found[1])} out of {decimal(found[2])}", "", 1)
    if (found := _MINUTES.fullmatch(token.core)) and word_before(reader) in _BEFORE_MINUTES:
        return Reading(f"{cardinal(int(found[1]))} {short_year(found[2])}")
    if found := _RATIO.fullmatch(token.core):
        return Reading(" to ".join(decimal(number) for number in found.groups() if number))
    return _read_other(token.core)


def _is_calculation(reader: TokenReader) -> bool:
    """Whether a product is asked for: `What's 7×8?`, `compute 12x12`."""
    word = word_before(reader).replace("’", "'")
    is_what = reader.earlier is not None and reader.earlier.core.lower() == "what"
    return word in _CALCULATIONS or (word == "is" and is_what)


def _is_after_number_sign(reader: TokenReader) -> bool:
    """Whether two numbers are one: `No. 19-1392`, unlike `Nos. 5-7`."""
    before = reader.before
    return before is not None and (before.core + before.trail).lower() == "no."


def _is_after_book(reader: TokenReader) -> bool:
    """Whether chapter and verse may follow: `Psalm 119:105`."""
    return reader.before is not None and reader.before.core in _WITH_VERSES


def _read_other(text: str) -> Reading | None:
    """`Psalm 23:1-6`, the season `2020/21`, `2.5kg/5.5lb`."""
    if found := _VERSES.fullmatch(text):
        return Reading(f"{cardinal(int(found[1]))} {decimal(found[2])} to {decimal(found[3])}")
    if (found := _SEASON.fullmatch(text)) and (int(found[1]) + 1) % 100 == int(found[2]):
        return Reading(f"{year(int(found[1]))} to {short_year(found[2])}")
    if (found := _SAME_UNIT.fullmatch(text)) and (name := unit_words(found[2], found[3])):
        return Reading(f"{decimal(found[1])} to {decimal(found[3])} {name}")
    if found := _PAIR.fullmatch(text):
        names = unit_words(found[2], found[1]), unit_words(found[4], found[3])
        if None not in names:
            return Reading(f"{decimal(found[1])} {names[0]}, {decimal(found[3])} {names[1]}")
    return None


def read_cross(reader: TokenReader, token: Token) -> Reading | None:
    """The "x" of `10 x 12` and `10 ft x 12 ft`."""
    before, following = reader.before, reader.token(1)
    if token.text not in ("x", "×") or before is None or following is None:
        return None
    is_before_number, unit = following.core[:1].isdigit(), core_after(reader, 2)
    earlier = reader.earlier
    is_length = before.core in UNITS and earlier is not None and earlier.core[-1:].isdigit()
    if is_length and is_before_number and unit == before.core:
        return Reading("by")  # "10 ft x 12 ft"
    if token.text == "×":
        return None
    is_side = before.core in _SIDES and earlier is not None and earlier.trail in _INCHES
    is_between = (before.core[:1].isdigit() or is_side) and is_before_number
    mass = following.core + unit if following.core.isdecimal() else following.core
    if is_between and before.core.isdecimal() and _MASS.fullmatch(mass):
        return Reading("times")  # "2 x 400g tins"
    if unit == "=":
        return Reading("times") if is_between else None
    return Reading("by") if is_between and not before.trail.strip("\"'”″′’") else None


def _bound(text: str, other: str) -> str:
    """One end of a range; two numbers of four digits are years."""
    is_year = text.isdecimal() and len(text) == 4 and 1100 <= int(text) <= 2099
    return year(int(text)) if is_year and len(other) in (2, 4) else decimal(text)
