"""Dates: `12/25/2024`, `2024-12-25`, `Dec. 25, 2024`, `25 December 2024`."""

from __future__ import annotations

import re

from vivace.text.normalize.english.numbers import ordinal, year
from vivace.text.normalize.english.tables import word_list, word_map, word_set
from vivace.text.normalize.rules import (
    ENDS,
    Reading,
    Token,
    TokenReader,
    core_after,
    is_capitalised,
    next_in_line,
    word_before,
)

MONTHS = word_list("months")
_SHORT = {month[:3]: month for month in MONTHS} | {"Sept": "September"}
_CAPITAL_MONTHS = frozenset(name.upper() for name in (*MONTHS, *_SHORT))
_DAYS = word_map("days")
_AND = ("and", "or", "&")
DAYS = frozenset(_DAYS.values())
NAMES = frozenset((*MONTHS, *_SHORT, *_DAYS))  # words that may be part of a date
_NUMERIC = re.compile(r"(\d{1,4})([-/.])(\d{1,2})\2(\d{1,4})")
_MONTH_DAYS = re.compile(r"(\d{1,2})/(\d{1,2})[-–](\d{1,2})/(\d{1,2})")
_NAMED = re.compile(r"(\d{1,2})([-/.])([A-Za-z]{3,9})\2(\d{4}|\d\d)")
_MONTH_DAY = re.compile(r"(\d{1,2})/(\d{1,2})")
_BEFORE_DATES = word_set("before_dates")
_AFTER_DATES = word_set("after_dates")
_BEFORE_SPANS = word_set("before_spans")  # also before fractions
_MONTH_YEAR = re.compile(r"(\d{1,2})/([12]\d{3})")
_DENOMINATORS = (2, 3, 4, 5, 6, 8)  # of fractions, where a date may stand too
_DAY = re.compile(r"(\d{1,2})(?:st|nd|rd|th)?", re.IGNORECASE)
_YEAR = re.compile(r"[12]\d{3}")
_SHORT_YEAR = re.compile(rf"['’]\d\d[{ENDS}\"]*")
_JOINT = re.compile("[-–—/]")
_DAY_NAMES = re.compile(rf"({'|'.join(_DAYS)})\.?[-–—]({'|'.join(_DAYS)})")
_TO_DATE = re.compile(r"(\d{1,2}(?:st|nd|rd|th)?|[12]\d{3})[-–—/]([A-Z][a-z]{2,8})")
_BOUNDS = re.compile(r"(\d{1,2})(?:st|nd|rd|th)?[-–](\d{1,2})(?:st|nd|rd|th)?")


def read_date(reader: TokenReader, token: Token) -> Reading | None:
    if _NUMERIC.fullmatch(token.core):
        return read_numeric(token.core)
    if (span := _MONTH_DAYS.fullmatch(token.core)) is not None:
        return _read_month_days([int(number) for number in span.groups()])
    if (named := read_named(token.core)) is not None:
        return named
    if found := _MONTH_DAY.fullmatch(token.core):
        return _read_month_day(reader, int(found[1]), int(found[2]))
    if (found := _MONTH_YEAR.fullmatch(token.core)) and 1 <= int(found[1]) <= 12:
        return Reading(f"{MONTHS[int(found[1]) - 1]} {year(int(found[2]))}")
    if found := _DAY_NAMES.fullmatch(token.core):
        return Reading(f"{_DAYS[found[1]]} to {_DAYS[found[2]]}")
    if (names := _read_names(token.core)) is not None:
        return names
    if token.core in _DAYS:
        return _read_day_name(reader, token)
    if (month_name := _month(token.core)) is not None:
        return _read_after_month(reader, token, month_name)
    if (_DAY.fullmatch(token.core) or _BOUNDS.fullmatch(token.core)) and token.is_open:
        return _read_day_first(reader, token)
    return None


def _read_names(text: str) -> Reading | None:
    """`Tue/Thu`, `Mon-Wed-Fri`, `Jan/Feb`, `Jan–Mar`."""
    if text[:3] not in _SHORT and text[:3] not in _DAYS:
        return None
    parts = _JOINT.split(text)
    if len(parts) < 2 or not (_SHORT.keys() >= set(parts) or _DAYS.keys() >= set(parts)):
        return None
    is_span = len(parts) == 2 and "/" not in text
    return Reading((" to " if is_span else " ").join((_SHORT | _DAYS)[part] for part in parts))


def read_numeric(text: str) -> Reading | None:
    """`12/25/2024`, `2024-12-25`, `25.12.2024`; None if it is no date."""
    found = _NUMERIC.fullmatch(text)
    if found is None:
        return None
    first, sign, second, third = found[1], found[2], int(found[3]), found[4]
    if len(first) == 4 and len(third) <= 2:
        date = (int(first), second, int(third))
    elif len(first) > 2 or len(third) not in (2, 4):
        return None
    else:
        number = int(third) if len(third) == 4 else _century(int(third))
        is_day_first = int(first) > 12 or sign == "."
        month, day = (second, int(first)) if is_day_first else (int(first), second)
        date = (number, month, day)
    number, month, day = date
    if not (1 <= month <= 12 and 1 <= day <= 31 and 1000 <= number <= 2999):
        return None
    return Reading(f"{_say(month, day)}, {year(number)}")


def read_named(text: str) -> Reading | None:
    """`12-Mar-2024`, `10/Oct/2000`, `5-JUN-24`."""
    found = _NAMED.fullmatch(text)
    month = _month(found[3]) if found else None
    if found is None or month is None or not 1 <= int(found[1]) <= 31:
        return None
    number = int(found[4]) if len(found[4]) == 4 else _century(int(found[4]))
    return Reading(f"{month} {ordinal(int(found[1]))}, {year(number)}")


def _read_month_day(reader: TokenReader, month: int, day: int) -> Reading | None:
    """`12/25`; `12/1` only where the word before it shows a date."""
    if month > 12 >= day and month <= 31:  # "on 18/11"
        word = "" if reader.before is None else reader.before.core.lower()
        return Reading(_say(day, month)) if word in _BEFORE_DATES and day else None
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    if day <= 12:
        before, following = reader.before, core_after(reader, 1)
        word = "" if before is None else before.core.lower()
        is_weekday = before is not None and before.core in (*DAYS, *_DAYS)
        is_fraction = month < day and day in _DENOMINATORS
        is_date = is_weekday or word in _BEFORE_DATES
        is_date = is_date or (word == "of" and _is_after_period(reader))  # "the week of 10/7"
        is_date = is_date or (not is_fraction and word in _BEFORE_SPANS)
        is_measure = is_fraction and day in (2, 3, 4, 8) and following.islower()
        is_measure = is_measure and following not in _AFTER_DATES  # "on 1/2 acre"
        if not is_date or is_measure or following == "of":
            return None
    return Reading(_say(month, day))


def _read_month_days(numbers: list[int]) -> Reading | None:
    """`5/17–6/2`; two numbers of which none can be a day are fractions."""
    months, days = numbers[::2], numbers[1::2]
    if max(days) <= 12 or max(days) > 31 or max(months) > 12 or min(numbers) < 1:
        return None
    is_eighths = all(day in (16, 32) or day <= 12 for day in days)  # "3/16-5/16"
    is_eighths = is_eighths and all(part % 2 for part in months)
    words = [_say(month, day) for month, day in zip(months, days, strict=True)]
    return None if is_eighths else Reading(" to ".join(words))


def _is_after_period(reader: TokenReader) -> bool:
    return reader.earlier is not None and reader.earlier.core in ("week", "night", "weekend")


def _century(number: int) -> int:
    return 2000 + number if number < 70 else 1900 + number


def _say(month: int, day: int) -> str:
    return f"{MONTHS[month - 1]} {ordinal(day)}"


def _month(word: str) -> str | None:
    """The month that a word names; "may" and "march" only with a capital letter."""
    name = word.capitalize() if word in _CAPITAL_MONTHS else word
    return name if name in MONTHS else _SHORT.get(name)


def _read_after_month(reader: TokenReader, token: Token, month: str) -> Reading | None:
    day = reader.token(1)
    is_short = token.core != month
    if is_short and token.trail == "." and day is None:  # "in Sept." at the end
        return Reading(month)
    if is_short and day is not None and _SHORT_YEAR.fullmatch(day.text):  # "Dec '23"
        return Reading(month, trail="")
    if token.trail not in ("", ".") or day is None or day.lead:
        is_dotted = token.trail.startswith(".") and is_short
        return Reading(month, trail=token.trail[1:]) if is_dotted and day is not None else None
    if _YEAR.fullmatch(day.core):
        return Reading(f"{month} {year(int(day.core))}", 2)
    if (bounds := _BOUNDS.fullmatch(day.core)) and int(bounds[2]) <= 31:
        return _with_year(
            reader, f"{month} {ordinal(int(bounds[1]))} to {ordinal(int(bounds[2]))}", 2
        )
    if found := _TO_DATE.fullmatch(day.core):
        return _read_to_date(reader, f"{month} {_number_of(found[1])}", found[2])
    if (number := _day_of(day)) is None:
        return Reading(month, trail="") if is_short and token.trail == "." else None
    return _with_year(reader, f"{month} {ordinal(number)}", 2)


def _number_of(text: str) -> str:
    return year(int(text)) if _YEAR.fullmatch(text) else ordinal(int(text.rstrip("stndrh")))


def _read_to_date(reader: TokenReader, first: str, month: str) -> Reading | None:
    """`Jan. 5–Feb. 3, 2024`, `Dec. 2019–Mar. 2020`, `Dec. 31/Jan. 1`."""
    second, last = reader.token(1), reader.token(2)
    month = _SHORT.get(month, month)
    is_open = second is not None and second.trail in ("", ".")
    if month not in MONTHS or last is None or last.lead or not is_open:
        return None
    if _YEAR.fullmatch(last.core):
        return Reading(f"{first} to {month} {year(int(last.core))}", 3)
    day = _day_of(last)
    return None if day is None else _with_year(reader, f"{first} to {month} {ordinal(day)}", 3)


def _read_day_first(reader: TokenReader, token: Token) -> Reading | None:
    """`25 December 2024`, `the 3rd of May`."""
    month, words = reader.token(1), _ordinals(token)
    if month is None or month.lead or not words:
        return None
    name = _month(month.core)
    if (
        name is None
        or month.trail not in ("", ".", ",")
        or (month.core == "May" and month.trail and not _BOUNDS.fullmatch(token.core))
    ):
        return None
    words = f"{words} of {name}"
    before = reader.before
    if before is None or before.core.lower() != "the":
        words = f"the {words}"
    return _with_year(reader, words, 2)


def _ordinals(token: Token) -> str:
    """The days before a month: `3`, `3rd`, `5-6`; "" for other text."""
    if (bounds := _BOUNDS.fullmatch(token.core)) and 1 <= int(bounds[1]) < int(bounds[2]) <= 31:
        return f"{ordinal(int(bounds[1]))} to {ordinal(int(bounds[2]))}"
    day = _day_of(token)
    return ordinal(day) if day else ""


def _with_year(reader: TokenReader, words: str, num_tokens: int) -> Reading:
    """Add the year that may follow after a comma."""
    last = reader.token(num_tokens - 1)
    assert last is not None
    if last.trail in ("", ",", "."):
        following = reader.token(num_tokens)
        if following is not None and not following.lead and _YEAR.fullmatch(following.core):
            return Reading(f"{words}, {year(int(following.core))}", num_tokens + 1)
    return Reading(words, num_tokens)


def _read_day_name(reader: TokenReader, token: Token) -> Reading | None:
    """`Mon., Dec. 5`; a word such as "Sun" is a day only before a date."""
    following = reader.token(1)
    is_before_date = following is not None and (
        _month(following.core) is not None or following.core[:1].isdigit()
    )
    if token.trail[:1] != "." and _is_day_name(reader, token):
        return Reading(_DAYS[token.core])
    is_word = token.core in ("Sat", "Sun", "Wed") and not token.trail.startswith(".,")
    is_name = token.trail.startswith(".") and (not is_word or _is_before_day(reader))
    if not is_name and not (is_before_date and token.trail in ("", ".", ",", ".,")):
        return None
    is_end = following is None or (not is_before_date and following.core[:1].isupper())
    is_end = is_end and not token.trail.startswith(".,")
    trail = token.trail if is_end else token.trail.removeprefix(".")
    return Reading(_DAYS[token.core], trail=trail)


def _is_day_name(reader: TokenReader, token: Token) -> bool:
    """Whether a word without a full stop is a day: `by Fri`, `Tue, Thu and Sat`."""
    before, following = reader.before, reader.token(1)
    if token.core in ("Tue", "Tues", "Thu", "Thur", "Thurs", "Fri"):
        return not is_capitalised(next_in_line(reader))  # "Thu Nguyen"
    last, next_ = reader.earlier, reader.token(2)
    neighbours = [before, following]
    neighbours += [last] if before is not None and before.core in _AND else []
    neighbours += [next_] if following is not None and following.core in _AND else []
    return any(one is not None and one.core in _DAYS for one in neighbours)


def _is_before_day(reader: TokenReader) -> bool:
    """Whether the word before announces a day: `closed Sun.`, `on Sat.`"""
    return word_before(reader) in (*_BEFORE_DATES, "closed", "every", "next", "open")


def _day_of(token: Token) -> int | None:
    """The number of a day: `3`, `3rd`."""
    found = _DAY.fullmatch(token.core)
    return int(found[1]) if found and 1 <= int(found[1]) <= 31 else None
