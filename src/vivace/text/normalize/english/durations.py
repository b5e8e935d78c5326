"""Durations: `1h30m`, `2h 15m 30s`, `wait 30s`, `0800 hrs`; minutes of goals: `90+2'`."""

from __future__ import annotations

import re

from vivace.text.normalize.english.numbers import cardinal, in_pairs
from vivace.text.normalize.english.tables import word_map, word_set
from vivace.text.normalize.rules import (
    ENDS,
    Reading,
    Token,
    TokenReader,
    core_after,
    is_capitalised,
    word_before,
)

_NAMES = {"d": "day", "h": "hour", "hr": "hour", "m": "minute", "min": "minute", "s": "second"}
_PARTS = re.compile(r"(?:\d{1,3}(?:d|hr?|min|m|s))+")
_PART = re.compile(r"(\d{1,3})(d|hr?|min|m|s)")
_ORDER = "dhms"
_SECONDS = re.compile(r"(\d{1,2}0)s")
_BEFORE_SECONDS = word_set("before_seconds")
_AFTER_SECONDS = word_set("after_seconds")
_MILITARY = re.compile(r"([01]\d|2[0-4])([0-5]\d)")
_MINUTES = re.compile(r"(\d{1,3})m")
_LABELS = word_set("before_durations")
_GOAL = re.compile(rf"(\d{{1,3}})(?:\+(\d{{1,2}}))?['’]([{ENDS}\"]*)")
_PLURALS = {"10": "tens", "100": "hundreds", "1000": "thousands", "1,000": "thousands"}
_ROUND = re.compile(r"(10|100|1,?000)s")
_MAX_TOKENS = 4
_MARKS = {sign: words for sign, words in word_map("number_signs").items() if sign in "~≈<>≤≥"}
_AGO = {**_NAMES, "w": "week", "wk": "week", "mo": "month", "y": "year", "yr": "year"}
_BEFORE_AGO = re.compile(rf"(\d{{1,4}})({'|'.join(sorted(_AGO, key=len, reverse=True))})")


def read_duration(reader: TokenReader, token: Token) -> Reading | None:
    if token.core[:1] in _MARKS and _PARTS.fullmatch(token.core, 1):  # "≈2h 15m"
        parts, num_tokens = _collect(reader)
        words = f"{_MARKS[token.core[0]]} {_say(parts)}"
        return Reading(words, num_tokens) if len(parts) > 1 else None
    if not token.core[:1].isdigit():
        return None
    if (goal := _read_goal(reader, token)) is not None:
        return goal
    if (found := _MINUTES.fullmatch(token.core)) and _is_labelled(reader):
        return Reading(_say([(found[1], "m")]))
    is_round = "of" in (core_after(reader, 1), word_before(reader))  # "10s of 1000s"
    if is_round and (found := _ROUND.fullmatch(token.core)):
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


def _read_goal(reader: TokenReader, token: Token) -> Reading | None:
    """The minute of a goal: `Salah (67')`, `Saka 12', Rice 45+2'`."""
    found = _GOAL.fullmatch(token.core + token.trail)
    if found is None:
        return None
    is_bracketed = token.lead == "(" and is_capitalised(reader.before)
    if not (found[2] or is_bracketed or _is_beside_goal(reader)):
        return None
    added = f" plus {cardinal(int(found[2]))}" if found[2] else ""
    following = reader.token(1) if found[3] == "" else None
    is_named = following is not None and following.core in ("minute", "minutes")
    name = "" if is_named else " minute" if found[1] == "1" else " minutes"
    return Reading(f"{cardinal(int(found[1]))}{added}{name}", trail=found[3])


def _is_beside_goal(reader: TokenReader) -> bool:
    """Whether a name stands before, and a penalty or another name with a goal is beside it."""
    before, following = reader.before, reader.token(1)
    if following is not None and following.text.startswith(("(pen", "(og", "(o.g")):
        return True
    if not is_capitalised(before):
        return False
    return _is_goal(reader.earlier) or (is_capitalised(following) and _is_goal(reader.token(2)))


def _is_goal(token: Token | None) -> bool:
    return token is not None and _GOAL.fullmatch(token.core + token.trail) is not None


def _is_labelled(reader: TokenReader) -> bool:
    """Whether a label stands before a duration: `Prep: 15m`."""
    before = reader.before
    return before is not None and before.trail == ":" and before.core.lower() in _LABELS


def _is_after_time_word(reader: TokenReader, token: Token) -> bool:
    """`wait 30s`, `timeout: 30s`, `in 30s.`, but `in 90s style`."""
    before = word_before(reader)
    is_rest = core_after(reader, 1) in _AFTER_SECONDS and before not in ("a", "an", "the")
    if is_rest or (before == "of" and _is_delay(reader.earlier)):
        return True  # "60s rest", "a timeout of 30s"
    is_last = not token.is_open or reader.token(1) is None
    if is_last and reader.before is not None and reader.before.trail == ":":
        return True
    return before in _BEFORE_SECONDS or (before == "in" and is_last)


def _is_delay(token: Token | None) -> bool:
    return token is not None and token.is_open and token.core.lower() in _AFTER_SECONDS


def _collect(reader: TokenReader) -> tuple[list[tuple[str, str]], int]:
    """Parts from the longest unit to the shortest, and their words."""
    parts: list[tuple[str, str]] = []
    for place in range(_MAX_TOKENS):
        core = core_after(reader, place)
        core = core if place else core.lstrip("".join(_MARKS))
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
