"""Source code and commands: `--verbose`, `f()`, `a == b`, `x ** 2`, `name==1.2.3`, `0x1F`."""

from __future__ import annotations

import re

from vivace.text.normalize.english.numbers import spell_digits
from vivace.text.normalize.english.web import read_version, spell_address
from vivace.text.normalize.rules import Reading, Token, TokenReader, is_beside_operator

_OPERATORS = {
    "**": "to the power of",
    "&&": "and",
    "||": "or",
    "+=": "plus equals",
    "-=": "minus equals",
    "*=": "times equals",
}
_FLAG = re.compile(r"(--?)([a-z][\w-]*|[B-HJ-Z])(?:=(.+))?")
_CALLED = re.compile(r"([A-Za-z_][\w.]*)\(")
_PINNED = re.compile(r"([A-Za-z][\w.-]*)(==|>=|<=|~=|!=|[<>])(\d[\w.]*)")
_COMPARISONS = {
    "==": "equals",
    ">=": "at least",
    "<=": "at most",
    "~=": "about",
    "!=": "is not",
    "<": "below",
    ">": "above",
}
_ALLOWED = re.compile(r"([\^~])(\d+(?:\.\d+){1,3})")  # versions: "^1.2.0", "~1.2.3"
_HEX = re.compile(r"0x([0-9A-Fa-f]+)")
_IPV6 = re.compile(r"(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}")


def read_source(reader: TokenReader, token: Token) -> Reading | None:
    core, text = token.core, token.text
    if text in _OPERATORS and _is_between_operands(reader, text):
        return Reading(_OPERATORS[text], lead="", trail="")
    if found := _HEX.fullmatch(core):
        return Reading(f"zero X {_spell(found[1])}")
    if found := _PINNED.fullmatch(core):
        words = f"{spell_address(found[1])} {_COMPARISONS[found[2]]}"
        return Reading(f"{words} {read_version(found[3])}")
    if (found := _ALLOWED.fullmatch(core)) and (found[1] == "^" or core.count(".") > 1):
        return Reading(f"{'caret' if found[1] == '^' else 'tilde'} {read_version(found[2])}")
    if found := _FLAG.fullmatch(core):
        if len(core) == 2 and is_beside_operator(reader):
            return Reading(f"minus {found[2]}")  # "(-b ± c)"
        return _read_flag(found)
    if token.trail.startswith(")") and (found := _CALLED.fullmatch(core)):
        words = spell_address(found[1].replace("_", " "))
        return Reading(words, trail=token.trail[1:])
    is_address = "::" in core or core.count(":") == 7
    if is_address and _IPV6.fullmatch(core) and any(map(str.isalnum, core)):
        return Reading(" ".join("colon" if c == ":" else _spell(c) for c in core))
    return None


def _is_between_operands(reader: TokenReader, text: str) -> bool:
    """Whether an operator has words on both sides; `**` also begins bold text."""
    before = reader.before
    if before is None or reader.token(1) is None:
        return False
    return text != "**" or before.core[-1:].isdigit() or len(before.core) == 1


def _read_flag(found: re.Match[str]) -> Reading | None:
    """`--verbose`; one hyphen only before a single letter."""
    if found[1] == "-" and (len(found[2]) > 1 or found[2] in "ai"):
        return None
    dashes = "dash dash" if found[1] == "--" else "dash"
    value = f" equals {spell_address(found[3])}" if found[3] else ""
    return Reading(f"{dashes} {spell_address(found[2].replace('-', ' '))}{value}")


def _spell(text: str) -> str:
    """Letters and digits one by one."""
    return " ".join(spell_digits(c) if c.isdecimal() else c.upper() for c in text)
