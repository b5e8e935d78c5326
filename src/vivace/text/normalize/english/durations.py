"""Durations: `1h30m`, `2h 15m 30s`, `wait 30s`, `0800 hrs`."""

from __future__ import annotations

import re

from vivace.text.normalize.english.numbers import cardinal, in_pairs
from vivace.text.normalize.english.tables import word_set
from vivace.text.normalize.rules import Reading, Token, TokenReader, core_after, word_before

_NAMES = {"d": "day", "h": "hour", "hr": "hour", "m": "minute", "min": "minute", "s": "second"}
_PARTS = re.compile(r"(?:\d{1,3}(?:d|hr?|min|m|s))+")
_PART = re.compile(r"(\d{1,3})(d|hr?|min|m|s)")
_ORDER = "dhms"
_SECONDS = re.compile(r"(\d{1,2}0)s")
_BEFORE_SECONDS = word_set("before_seconds")
_MILITARY = re.compile(r"([01]\d|2[0-4])([0-5]\d)")
_PLURALS = {"10": "tens", "100": "hundreds", "1000": "thousands", "1,000": "thousands"}
_ROUND = re.compile(r"(10|100|1,?000)s")
_MAX_TOKENS = 4
_AGO = {**_NAMES, "w": "week", "wk": "week", "mo": "month", "y": "year", "yr": "year"}
_BEFORE_AGO = re.compile(rf"(\d{{1,4}})({'|'.join(sorted(_AGO, key=len, reverse=True))})")


def read_duration(reader: TokenReader, token: Token) -> Reading | None:
    if not token.core[:1].isdigit():
        return None
    if (found := _ROUND.fullmatch(token.core)) and core_after(reader, 1) == "of":
        return Reading(_PLURALS[found[1]])
    if (found := _SECONDS.fullmatch(token.core)) and _is_after_time_word(reader, token):
        return Reading(_say([(found[1], "s")]))
    if (found := _BEFORE_AGO.fullmatch(token.core)) and core_after(reader, 1) == "ago":
        return Reading(_say([(found[1], found[2])]))
    if (found := _MILITARY.fullmatch(token.core)) and core_after(reader, 1) in ("hrs", "hours"):
        return Reading(_say_military(found[1], found[2]), 2)
    if not _PARTS.fullmatch(token.core):
        return None
    parts, num_tokens = _collect(reader)
    return Reading(_say(parts), num_tokens) if len(parts) > 1 else None


def _is_after_time_word(reader: TokenReader, token: Token) -> bool:
    """`wait 30s`, `timeout: 30s`, `in 30s.`, but `in 90s style`."""
    before = word_before(reader)
    is_last = not token.is_open or reader.token(1) is None
    if is_last and reader.before is not None and reader.before.trail == ":":
        return True
    return before in _BEFORE_SECONDS or (before == "in" and is_last)


def _collect(reader: TokenReader) -> tuple[list[tuple[str, str]], int]:
    """Parts from the longest unit to the shortest, and their words."""
    parts: list[tuple[str, str]] = []
    for place in range(_MAX_TOKENS):
        core = core_after(reader, place)
        if not _PARTS.fullmatch(core):
            return parts, place
        both = parts + _PART.findall(core)
        ranks = [_ORDER.index(unit[0]) for _, unit in both]
        if ranks != sorted(set(ranks)):
            return parts, place
        parts = both
    return parts, _MAX_TOKENS


def _say(parts: list[tuple[str, str]]) -> str:
    return " ".join(
        f"{cardinal(int(number))} {_AGO[unit]}{'' if int(number) == 1 else 's'}"
        for number, unit in parts
    )


def _say_military(hour: str, minutes: str) -> str:
    """`0800 hrs` as "zero eight hundred hours"."""
    words = f"zero {cardinal(int(hour[1]))}" if hour[0] == "0" else cardinal(int(hour))
    ending = "hundred" if minutes == "00" else in_pairs(f"1{minutes}").removeprefix("one ")
    return f"{words} {ending} hours"
