"""Telephone numbers: `555-0123`, `+1 (555) 010-9999`, `1-800-555-0199`."""

from __future__ import annotations

import re

from vivace.text.normalize.english.numbers import cardinal, spell_digits
from vivace.text.normalize.rules import Reading, Token, TokenReader, core_after

_WHOLE = re.compile(
    r"(?:\+?1[-.])?(?:\(?\d{3}\)?[-.])?\d{3}[-.]\d{4}|\+\d{1,3}(?:[-.]\d{2,4}){2,4}|\+\d{10,13}"
    r"|1-\d{3}-[A-Z]{5,9}|0\d{2,4}/\d{4,8}|\d{2,9}(?:-\d{2,9}){2,4}|\d{1,7}(?:-\d{1,7}){3,5}"
)
_PART = re.compile(r"0\d{4}|\+?\d{1,4}(?:[-.]\d{2,4}){0,3}|\(\+?\d{1,5}\)(?:[-.]?\d{2,4}){0,3}")
_ENDS = ".,;:!?…\"”'’)]*_"
_BRACKETED = re.compile(r"\(\d{3}\)\d{3}[-.]\d{4}")
_LONG_PART = re.compile(r"\d{5,9}")  # the last group of some numbers abroad
_MAX_PARTS = 6
_CARD_PART = re.compile(r"\d{3,4}")
_EXTENSION = re.compile(r"x(\d{2,6})")
_MAX_CARD_PARTS = 7


def read_phone(reader: TokenReader, token: Token) -> Reading | None:
    core = token.core
    if _WHOLE.fullmatch(core) and len(core) > 7:
        return Reading(say_phone(core))
    if _CARD_PART.fullmatch(core) and (card := _read_card(reader)) is not None:
        return card
    if (found := _EXTENSION.fullmatch(core)) and _is_after_phone(reader):
        return Reading(f"extension {spell_digits(found[1])}")
    lead = _lead(token)
    number, trail = _split_end(token.text[len(lead) :])
    if _BRACKETED.fullmatch(number):
        return Reading(say_phone(number), lead=lead, trail=trail)
    is_begun = core.startswith("+") or lead != token.lead or re.fullmatch(r"0\d{2,4}", core)
    if not is_begun or not any(letter.isdigit() for letter in core):
        return None
    return _read_parts(reader, lead)


def _lead(token: Token) -> str:
    """The signs before a number; the bracket of an area code belongs to the number."""
    is_area = token.lead.endswith("(") and ")" in token.core + token.trail[:1]
    return token.lead[:-1] if is_area else token.lead


def _split_end(text: str) -> tuple[str, str]:
    """A number and the signs after it; the bracket of an area code belongs to the number."""
    number = text.rstrip(_ENDS)
    if number.count("(") > number.count(")") and text[len(number) : len(number) + 1] == ")":
        number += ")"
    return number, text[len(number) :]


def _is_after_phone(reader: TokenReader) -> bool:
    before = reader.before
    return before is not None and re.search(r"\d{4}$", before.core) is not None


def _read_card(reader: TokenReader) -> Reading | None:
    """The number of a card, an account or a meeting: `4111 1111 1111 1111`, `812 4567 8901`."""
    groups: list[str] = []
    for place in range(_MAX_CARD_PARTS):
        group = core_after(reader, place)
        if not re.fullmatch(r"\d{2,4}", group):
            break
        groups.append(group)
    are_years = all(group[:2] in ("18", "19", "20") for group in groups)
    if len(groups) < 3 or are_years or any(len(group) < 4 for group in groups[1:-1]):
        return None
    return Reading(say_phone(" ".join(groups)), len(groups))


def _read_parts(reader: TokenReader, lead: str) -> Reading | None:
    """A number in several groups: `+44 20 7946 0958`, `(555) 010-9999`."""
    groups: list[str] = []
    trail = ""
    for place in range(_MAX_PARTS):
        token = reader.token(place)
        if token is None:
            break
        body, trail_here = _split_end(token.text if place else token.text[len(lead) :])
        is_long = place > 0 and groups[0][0] in "+0" and _LONG_PART.fullmatch(body)
        if not _PART.fullmatch(body) and not is_long:
            break
        groups.append(body)
        trail = trail_here
        if trail:
            break
    digits = re.sub(r"\D", "", "".join(groups))
    if len(groups) < 2 or not 7 <= len(digits) <= 15:
        return None
    return Reading(say_phone(" ".join(groups)), len(groups), trail, lead)


def say_phone(text: str) -> str:
    """Digits one by one, with a comma between groups; 800 is "eight hundred"."""
    spoken = ["plus"] if text.startswith("+") else []
    groups = re.findall(r"[A-Z]+|\d+", text)
    words = [
        group.lower()
        if group.isalpha()
        else "eight hundred"
        if group == "800" and text.startswith("1")
        else _group(group)
        for group in groups
    ]
    return " ".join([*spoken, ", ".join(words)])


def _group(digits: str) -> str:
    return cardinal(int(digits)) if digits == "1" else spell_digits(digits)
