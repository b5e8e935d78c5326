"""References: `401(k)`, `50(2)`, `§§ 5-7`, `page xii`, `(ii)`."""

from __future__ import annotations

import re

from vivace.text.normalize.english.numbers import (
    SMALL_NUMERALS,
    cardinal,
    in_pairs,
    read_digits,
    roman,
)
from vivace.text.normalize.english.tables import word_map, word_set
from vivace.text.normalize.rules import Reading, Token, TokenReader

_BEFORE_NUMERALS = word_set("before_small_numerals")
NUMBERED = word_map("numbered")  # abbreviations before a number
_LETTERS = ("i", "v", "x")  # also a pronoun and two variables
_SPAN = re.compile(r"([ivx]+)[-–—]([ivx]+)")
_BRACKETED = re.compile(r"(\d{1,4}(?:\.\d{1,3})*)((?:\([a-zA-Z0-9]{1,4}\))+)([.,;:!?]*)")
_INSIDE = re.compile(r"\((\w+)\)")
_NUMBERED = re.compile(r"\d{1,4}(?:\.\d{1,4})*")
_SECTION = re.compile(r"(§{1,2})(.*)")


def is_small_numeral(text: str) -> bool:
    """Whether a word is a Roman numeral in lower case, or two with a dash between them."""
    return text in SMALL_NUMERALS or _SPAN.fullmatch(text) is not None


def is_numeral(text: str) -> bool:
    """Whether a word is a Roman numeral of several capitals, or two with a dash between them."""
    numbers = [roman(part) for part in re.split("[-–—]", text)]
    return len(text) > 1 and len(numbers) <= 2 and None not in numbers


def read_reference(reader: TokenReader, token: Token) -> Reading | None:
    core = token.core
    if is_small_numeral(core):
        return _read_numeral(reader, token)
    if is_numeral(core) and is_numbered(reader):
        return Reading(" to ".join(_say_numeral(part) for part in re.split("[-–—]", core)))
    if core.startswith("§"):
        return _read_section(core)
    if "(" not in core:
        return None
    found = _BRACKETED.fullmatch(core + token.trail)
    return Reading(_say_bracketed(found), trail=found[3]) if found else None


def _say_bracketed(found: re.Match[str]) -> str:
    """`401(k)` as "four oh one k", `50(2)` as "fifty, two"."""
    parts: list[str] = _INSIDE.findall(found[2])
    if "." in found[1]:  # "4.2.1(a)"
        number = " point ".join(map(read_digits, found[1].split(".")))
        return " ".join([number, *map(_say_part, parts)])
    if parts[0].isdecimal():
        return ", ".join([read_digits(found[1]), *map(_say_part, parts)])
    return " ".join([in_pairs(found[1]), *map(_say_part, parts)])


def _say_part(part: str) -> str:
    if part.isdecimal():
        return read_digits(part)
    number = roman(part.upper()) if len(part) > 1 else None
    return part if number is None else cardinal(number)


def _read_section(core: str) -> Reading | None:
    found = _SECTION.fullmatch(core)
    assert found is not None
    rest = found[2]
    if rest and not _NUMBERED.fullmatch(rest):
        return None
    words = "sections" if len(found[1]) > 1 else "section"
    number = " point ".join(map(read_digits, rest.split("."))) if rest else ""
    return Reading(f"{words} {number}".strip())


def _read_numeral(reader: TokenReader, token: Token) -> Reading | None:
    """A numeral in lower case: after a word such as `page`, or alone in brackets."""
    core, before = token.core, reader.before
    if token.text.rstrip(".,;:") == f"({core})" and core not in ("v", "x"):
        return Reading(_say_numeral(core))
    if before is None or before.trail not in ("", "."):
        return None
    if before.core.lower() not in _BEFORE_NUMERALS:
        return None
    if core in _LETTERS and not _is_letter_a_page(reader, token):
        return None
    if found := _SPAN.fullmatch(core):
        first, last = found[1], found[2]
        if first not in SMALL_NUMERALS or last not in SMALL_NUMERALS:
            return None
        return Reading(f"{_say_numeral(first)} to {_say_numeral(last)}")
    return Reading(_say_numeral(core))


def is_numbered(reader: TokenReader) -> bool:
    """Whether a number follows an abbreviation such as `vol.`."""
    before = reader.before
    return before is not None and before.trail == "." and before.core.lower() in NUMBERED


def _is_letter_a_page(reader: TokenReader, token: Token) -> bool:
    """Whether i, v or x ends a phrase after `page` or `chapter`, unlike "the page i read"."""
    is_last = not token.is_open or reader.token(1) is None
    assert reader.before is not None
    return is_last and reader.before.core.lower() in ("p", "page", "pp", "chapter", "volume")


def _say_numeral(text: str) -> str:
    return cardinal(roman(text.upper()) or 0)
