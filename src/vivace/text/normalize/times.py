"""Times of day: `3:30 pm`, `14:05`, `9am`, `9:00-17:00`."""

from __future__ import annotations

import re

from vivace.text.normalize.numbers import cardinal, spell_digits
from vivace.text.normalize.reading import Reading
from vivace.text.normalize.tokens import TokenReader

_CLOCK = r"([01]?\d|2[0-4]):([0-5]\d)(?::([0-5]\d))?"
_HALF = r"[ap]\.?m\.?"
_TIME = re.compile(rf"{_CLOCK}({_HALF})?", re.IGNORECASE)
_HOUR = re.compile(rf"(1[0-2]|[1-9])({_HALF})", re.IGNORECASE)
_BARE = re.compile(r"1[0-2]|[1-9]")
_ONLY_HALF = re.compile(_HALF, re.IGNORECASE)
_SPAN = re.compile(r"(.{1,11}?)[-–—](.{1,11})")


def read_time(reader: TokenReader) -> Reading | None:
    token = reader.token()
    assert token is not None
    if not token.core[:1].isdigit():
        return None
    if (span := _SPAN.fullmatch(token.core)) is not None:
        first, last = _say(span[1], is_first=True), _say(span[2])
        if first is None or last is None or not any(sign in token.core for sign in ":aApP"):
            return None
        return _with_half(reader, f"{first} to {last}", is_whole=bool(_half_of(span[2])))
    words = _say(token.core)
    is_bare = _BARE.fullmatch(token.core) is not None
    if words is None:
        return None
    reading = _with_half(reader, words, is_whole=bool(_half_of(token.core)))
    if is_bare and reading.num_tokens == 1:
        return None
    return reading


def _half_of(text: str) -> str:
    found = _TIME.fullmatch(text)
    if found is not None:
        return found[4] or ""
    found = _HOUR.fullmatch(text)
    return found[2] if found else ""


def _say(text: str, *, is_first: bool = False) -> str | None:
    if found := _HOUR.fullmatch(text):
        return f"{cardinal(int(found[1]))} {_letters(found[2])}"
    if _BARE.fullmatch(text):
        return cardinal(int(text))
    if (found := _TIME.fullmatch(text)) is None:
        return None
    hour, minutes, seconds, half = found.groups()
    words = cardinal(int(hour))
    if minutes != "00":
        words += (
            f" oh {cardinal(int(minutes[1]))}"
            if minutes[0] == "0"
            else f" {cardinal(int(minutes))}"
        )
    elif not half and not seconds and not is_first:
        words += " o'clock" if 0 < int(hour) <= 12 else " hundred"
    if seconds:
        words += f" {spell_digits(seconds) if seconds[0] == '0' else cardinal(int(seconds))}"
    return f"{words} {_letters(half)}" if half else words


def _with_half(reader: TokenReader, words: str, *, is_whole: bool) -> Reading:
    """What follows: "pm" may stand apart: `3:30 p.m.`; its last full stop may end the sentence."""
    token = reader.token()
    assert token is not None
    if is_whole:
        return Reading(words, trail=_trail(reader, token.trail, 0, has_dot="." in token.core))
    if not token.is_open:
        return Reading(words)
    following = reader.token(1)
    if following is None or following.lead or not _ONLY_HALF.fullmatch(following.core):
        return Reading(words)
    words = words.removesuffix(" o'clock").removesuffix(" hundred")
    trail = _trail(reader, following.trail, 1, has_dot="." in following.core)
    return Reading(f"{words} {_letters(following.core)}", 2, trail)


def _trail(reader: TokenReader, trail: str, place: int, *, has_dot: bool) -> str:
    """The full stop of "p.m." goes unless a sentence ends there."""
    if not has_dot or not trail.startswith("."):
        return trail
    following = reader.token(place + 1)
    is_end = following is None or following.text[:1].isupper() or trail != "."
    return trail if is_end else trail[1:]


def _letters(half: str) -> str:
    return " ".join(half.replace(".", "").upper())
