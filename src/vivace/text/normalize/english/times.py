"""Times of day: `3:30 pm`, `14:05`, `9am`, `7.30pm`, `9:00-17:00`, `2024-05-01T10:30Z`."""

from __future__ import annotations

import re
from dataclasses import replace

from vivace.text.normalize.english.abbreviations import stop_after
from vivace.text.normalize.english.dates import DAYS, MONTHS, read_named, read_numeric
from vivace.text.normalize.english.numbers import cardinal, short_year, spell_digits
from vivace.text.normalize.english.unit_names import per_words
from vivace.text.normalize.rules import Reading, Token, TokenReader, core_after

_CLOCK = r"([01]?\d|2[0-4]):([0-5]\d)(?::([0-5]\d)(?:[.,](\d{1,3}))?)?"
_LAP = re.compile(r"(\d{1,2}):([0-5]\d)\.(\d{1,3})")  # 1:15.096
_PACE = re.compile(r"(\d{1,2}):([0-5]\d)/(km|mi|100m|400m|mile)")
_HALF = r"[ap]\.?m\.?"
_TIME = re.compile(rf"{_CLOCK}({_HALF}|[ap])?", re.IGNORECASE)  # also "6:42a"
_HOUR = re.compile(rf"(1[0-2]|[1-9])({_HALF})", re.IGNORECASE)
_BARE = re.compile(r"1[0-2]|[1-9]")
_ONLY_HALF = re.compile(_HALF, re.IGNORECASE)
_ZONES = frozenset(("Eastern", "Pacific", "Central", "Mountain", *DAYS, *MONTHS))
_HALF_SPAN = re.compile(rf"({_HALF})[-–—](.{{1,11}})", re.IGNORECASE)
_WITH_STOP = re.compile(rf"(1[0-2]|[1-9])\.([0-5]\d)({_HALF})?", re.IGNORECASE)  # 7.30pm
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(?::\d\d(?:\.\d+)?)?(Z|[+-]\d\d:?\d\d)?")
_LOG_STAMP = re.compile(r"(\d{1,2}/[A-Z][a-z]{2}/\d{4}):(\d\d:\d\d)(?::\d\d)?")  # of web servers
_OFFSET = re.compile(r"[+-]\d{4}")
_SHORT_SPAN = re.compile(rf"(?:{_BARE.pattern})[ap]?[-–—](?:{_BARE.pattern})[ap]")  # "12-1p"
_SHORT_HALF = re.compile(r"(?<=\d)([ap])")
_SPAN = re.compile(r"(.{1,11}?)[-–—](.{1,11})")


def read_time(reader: TokenReader, token: Token) -> Reading | None:
    if not token.core[:1].isdigit():
        return None
    if token.core.endswith("ish") and (words := _say(token.core[:-3])) is not None:
        return Reading(f"{words}-ish")
    if (stamp := _STAMP.fullmatch(token.core)) is not None:
        return _read_stamp(stamp)
    if (stamp := _LOG_STAMP.fullmatch(token.core)) is not None:
        reading = _read_stamp(stamp)
        has_zone = _OFFSET.fullmatch(core_after(reader, 1)) is not None
        return replace(reading, num_tokens=2) if reading and has_zone else reading
    if found := _LAP.fullmatch(token.core):
        lap = f"{cardinal(int(found[1]))} {short_year(found[2])}"
        return Reading(f"{lap} point {spell_digits(found[3])}")
    if found := _PACE.fullmatch(token.core):
        pace = f"{cardinal(int(found[1]))} {short_year(found[2]) if found[2] != '00' else ''}"
        return Reading(f"{pace.strip()} per {per_words(found[3])}")
    if (found := _WITH_STOP.fullmatch(token.core)) is not None:
        if not found[3] and not _ONLY_HALF.fullmatch(core_after(reader, 1)):
            return None
        token = replace(token, core=token.core.replace(".", ":", 1))
    if _SHORT_SPAN.fullmatch(token.core):
        token = replace(token, core=_SHORT_HALF.sub(r"\1m", token.core))
    if (span := _SPAN.fullmatch(token.core)) is not None:
        first, last = _say(span[1], is_first=True), _say(span[2])
        if first is None or last is None or not any(sign in token.core for sign in ":aApP"):
            return None
        return _with_half(reader, token, f"{first} to {last}", is_whole=bool(_half_of(span[2])))
    if (words := _say(token.core)) is None:
        return None
    reading = _with_half(reader, token, words, is_whole=bool(_half_of(token.core)))
    return None if _BARE.fullmatch(token.core) and reading.num_tokens == 1 else reading


def _read_stamp(stamp: re.Match[str]) -> Reading | None:
    """The date and the time of a time stamp, without its seconds."""
    date, time = read_numeric(stamp[1]) or read_named(stamp[1]), _say(stamp[2])
    if date is None or time is None:
        return None
    return Reading(f"{date.words}, {time}{' U T C' if stamp[0].endswith('Z') else ''}")


def _half_of(text: str) -> str:
    found = _TIME.fullmatch(text)
    if found is not None:
        return found[5] or ""
    found = _HOUR.fullmatch(text)
    return found[2] if found else ""


def _say(text: str, *, is_first: bool = False) -> str | None:
    if found := _HOUR.fullmatch(text):
        return f"{cardinal(int(found[1]))} {_letters(found[2])}"
    if _BARE.fullmatch(text):
        return cardinal(int(text))
    if (found := _TIME.fullmatch(text)) is None:
        return None
    hour, minutes, seconds, places, half = found.groups()
    words = cardinal(int(hour))
    if minutes != "00":
        words += (
            f" oh {cardinal(int(minutes[1]))}"
            if minutes[0] == "0"
            else f" {cardinal(int(minutes))}"
        )
    elif not half and not seconds and not is_first:
        words += " o'clock" if 0 < int(hour) <= 12 else " hundred"
    elif seconds and int(seconds):
        words += " oh oh"
    if seconds:
        words += f" {short_year(seconds)}" if int(seconds) else " oh oh"
    if places:
        words += f" point {spell_digits(places)}"
    return f"{words} {_letters(half)}" if half else words


def _with_half(reader: TokenReader, token: Token, words: str, *, is_whole: bool) -> Reading:
    """Add a separate "pm" (`3:30 p.m.`) and the second time of a span."""
    if is_whole:
        return Reading(words, trail=_trail(reader, token.trail, 0, token.core))
    following = reader.token(1) if token.is_open else None
    if following is None or following.lead:
        return Reading(words)
    bare = words.removesuffix(" o'clock").removesuffix(" hundred")
    if _ONLY_HALF.fullmatch(following.core):
        trail = _trail(reader, following.trail, 1, following.core)
        return Reading(f"{bare} {_letters(following.core)}", 2, trail)
    span = _HALF_SPAN.fullmatch(following.core)
    last = None
    if span:
        last = span[2] if span[2] in ("noon", "midnight") else _say(span[2])
    if span is None or last is None:
        return Reading(words)
    return _with_last_half(reader, f"{bare} {_letters(span[1])} to {last}", following)


def _with_last_half(reader: TokenReader, words: str, second: Token) -> Reading:
    """The end of `10 a.m.-2 p.m.`."""
    third = reader.token(2) if second.is_open else None
    if third is None or third.lead or not _ONLY_HALF.fullmatch(third.core):
        return Reading(words, 2)
    words = words.removesuffix(" o'clock")
    return Reading(f"{words} {_letters(third.core)}", 3, _trail(reader, third.trail, 2, third.core))


def _trail(reader: TokenReader, trail: str, place: int, core: str) -> str:
    """Remove the full stop of "p.m." unless a sentence ends there."""
    if "." not in core or not trail.startswith("."):
        return trail
    following = reader.token(place + 1)
    is_zone = following is not None and (following.core.isupper() or following.core in _ZONES)
    return stop_after(reader, trail, place, is_name=is_zone)


def _letters(half: str) -> str:
    return f"{half[0].upper()} M"
