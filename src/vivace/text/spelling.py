"""Spelling marks: `[spell: NASA]` is read by letters, `[digits: 2024]` by digits."""

from __future__ import annotations

import re
import unicodedata

MAX_MARK_CHARS = 200  # between the brackets

MARK_PATTERN = rf"\[(spell|digits):([^\[\]\n]{{1,{MAX_MARK_CHARS}}})\]"
MARK = re.compile(MARK_PATTERN, re.IGNORECASE)
_NAMES = ("[spell:", "[digits:")
_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_SIGNS = {  # names of signs in a code
    "-": "dash", ".": "dot", "/": "slash", "\\": "backslash", "_": "underscore", "@": "at",
    "+": "plus", "&": "and", "#": "hash", "*": "star", ":": "colon", "%": "percent", "=": "equals",
}  # fmt: skip
_CHARACTER = re.compile(r"\s+|.", re.DOTALL)
_BETWEEN_DIGITS = re.compile(r"(?<=\d)[^\w]+(?=\d)")
_RUN = re.compile(r"\d+")


def is_open_mark(text: str, start: int) -> bool:
    """Whether the text from the bracket at `start` on may still become a mark."""
    rest = text[start : start + len(_NAMES[1]) + MAX_MARK_CHARS + 2].lower()
    if "]" in rest or "\n" in rest or "[" in rest[1:]:
        return False
    is_begun = any(name.startswith(rest) for name in _NAMES)
    return is_begun or any(
        rest.startswith(name) and len(rest) <= len(name) + MAX_MARK_CHARS for name in _NAMES
    )


def read_mark(mark: re.Match[str], *, is_english: bool) -> str:
    """The words of a mark; English words that the normalizer does not change."""
    content = mark[2].strip()
    if not content:
        return mark[0]
    spell = spell_out if mark[1].lower() == "spell" else read_digits
    return spell(content, is_english=is_english) or content


def read_marks(text: str, *, is_english: bool) -> str:
    """Replace all marks of a text."""
    return MARK.sub(lambda mark: read_mark(mark, is_english=is_english), text)


def spell_out(content: str, *, is_english: bool) -> str:
    """Write characters one by one; white space becomes a comma."""
    words: list[str] = []
    for character in _CHARACTER.findall(content):
        if character.isspace():
            words[-1:] = [f"{word}," for word in words[-1:]]
        elif unicodedata.category(character)[0] == "M" and words:
            words[-1] += character
        elif word := _read_character(character, is_english=is_english):
            words.append(word)
    return " ".join(words)


def read_digits(content: str, *, is_english: bool) -> str:
    """Write digits one by one, with a comma between groups; words stay."""
    content = _BETWEEN_DIGITS.sub(", ", content)

    def read(run: re.Match[str]) -> str:
        digits = " ".join(_read_character(digit, is_english=is_english) for digit in run[0])
        before, after = content[run.start() - 1 : run.start()], content[run.end() : run.end() + 1]
        return " " * before.isalnum() + digits + " " * after.isalnum()

    return _RUN.sub(read, content)


def _read_character(character: str, *, is_english: bool) -> str:
    if is_english and character.isdecimal():
        return _DIGITS[unicodedata.decimal(character)]
    if is_english and not character.isalnum():
        return _SIGNS.get(character, "")
    capital = character.upper()
    return capital if len(capital) == 1 else character
