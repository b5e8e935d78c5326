"""Words joined by strokes and dashes, each part read for itself: `mid-1990s`, `well—NO`."""

from __future__ import annotations

import re

from vivace.text.normalize.capitals import read_word
from vivace.text.normalize.codes import read_mixed
from vivace.text.normalize.numbers import cardinal, decimal, plural, year
from vivace.text.normalize.reading import Reading
from vivace.text.normalize.signs import INSIDE
from vivace.text.normalize.tokens import TokenReader

_JOINTS = re.compile(r"(—|…|\.{2,}|[-–/&+=@±×÷<>≤≥≈≠→°√∞²³%^_|~#*:;,!?()\[\]{}\"“”$€£])")
_NUMBER = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?")
_DECADE = re.compile(r"(\d{1,3}0)s")
_CAPITALS = re.compile(r"[A-Z]{2,}")


def read_compound(reader: TokenReader) -> Reading | None:
    token = reader.token()
    assert token is not None
    parts = [part for part in _JOINTS.split(token.core) if part]
    if len(parts) < 2 or not any(map(_is_changed, parts)):
        return None
    return Reading("".join(_read_parts(parts)))


def _is_changed(part: str) -> bool:
    return _read_part(part) != part or part in INSIDE


def _read_parts(parts: list[str]) -> list[str]:
    """Words as they are said, with a hyphen between plain words as it was."""
    said: list[str] = []
    for place, part in enumerate(parts):
        if not _JOINTS.fullmatch(part):
            said.append(_read_part(part))
        elif part in "-–":
            is_plain = 0 < place < len(parts) - 1 and all(
                neighbour.isalpha() and not _CAPITALS.fullmatch(neighbour)
                for neighbour in (parts[place - 1], parts[place + 1])
            )
            said.append("-" if is_plain else " ")
        elif part in "—…" or part.startswith(".."):
            said.append(" - " if part == "—" else "... ")
        elif part in ",;:!?":
            said.append(f"{part} ")
        else:
            word = INSIDE.get(part, "")
            said.append(f" {word} " if word else " ")
    return said


def _read_part(part: str) -> str:
    if _NUMBER.fullmatch(part):
        is_year = part.isdecimal() and len(part) == 4 and 1900 <= int(part) <= 2099
        return year(int(part)) if is_year else decimal(part)
    if found := _DECADE.fullmatch(part):
        words = year(int(found[1])) if len(found[1]) == 4 else cardinal(int(found[1]))
        cut = max(words.rfind(" "), words.rfind("-")) + 1
        return words[:cut] + plural(words[cut:])
    if _CAPITALS.fullmatch(part):
        return read_word(part, is_loud=False)
    if part.isalnum() and not part.isalpha():
        return read_mixed(part)
    return part
