"""Patterns of Python's `re` as sources of JavaScript's RegExp with the flag `u`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from javascript.errors import UnsupportedError

if sys.version_info >= (3, 11):
    from re import _constants as codes
    from re import _parser as parser
else:
    import sre_constants as codes
    import sre_parse as parser

_WORD, _DIGIT = r"\p{L}\p{N}_", r"\p{Nd}"
_SPACE = r"\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_CATEGORIES = {
    codes.CATEGORY_WORD: (_WORD, True),
    codes.CATEGORY_NOT_WORD: (_WORD, False),
    codes.CATEGORY_DIGIT: (_DIGIT, True),
    codes.CATEGORY_NOT_DIGIT: (_DIGIT, False),
    codes.CATEGORY_SPACE: (_SPACE, True),
    codes.CATEGORY_NOT_SPACE: (_SPACE, False),
}
_PLACES = {
    codes.AT_BEGINNING: "^",
    codes.AT_BEGINNING_STRING: "^",
    codes.AT_END: r"(?=\n?$)",
    codes.AT_END_STRING: "$",
    codes.AT_BOUNDARY: f"(?:(?<=[{_WORD}])(?![{_WORD}])|(?<![{_WORD}])(?=[{_WORD}]))",
}
_SUPPORTED = re.UNICODE | re.IGNORECASE | re.DOTALL
_LOOKS = {(1, True): "?=", (1, False): "?!", (-1, True): "?<=", (-1, False): "?<!"}
Parsed = Any  # `re` publishes no types of its parser


def translate(pattern: re.Pattern[str]) -> str:
    """The source of the RegExp that matches like `pattern`."""
    if pattern.flags & ~_SUPPORTED:
        raise UnsupportedError(f"flags of {pattern.pattern!r} are not supported")
    names = {number: name for name, number in pattern.groupindex.items()}
    parsed = parser.parse(pattern.pattern, pattern.flags)
    return _Writer(names, pattern.pattern).sequence(parsed, pattern.flags)


class _Writer:
    """Writes the parts of one pattern."""

    def __init__(self, names: Mapping[int, str], pattern: str) -> None:
        self._names, self._pattern = names, pattern

    def sequence(self, parsed: Parsed, flags: int) -> str:
        return "".join(self._part(code, value, flags) for code, value in parsed)

    def _part(self, code: Parsed, value: Parsed, flags: int) -> str:
        writer: Callable[[Parsed, int], str] | None = {
            codes.LITERAL: lambda value, flags: _literal(value, flags),
            codes.NOT_LITERAL: lambda value, flags: f"[^{_item(value, flags)}]",
            codes.ANY: lambda value, flags: "[^]" if flags & re.DOTALL else r"[^\n]",
            codes.IN: lambda value, flags: _class(value, flags),
            codes.BRANCH: self._branch,
            codes.SUBPATTERN: self._group,
            codes.MAX_REPEAT: lambda value, flags: self._repeat(value, flags, ""),
            codes.MIN_REPEAT: lambda value, flags: self._repeat(value, flags, "?"),
            codes.ASSERT: lambda value, flags: self._look(value, flags, is_positive=True),
            codes.ASSERT_NOT: lambda value, flags: self._look(value, flags, is_positive=False),
            codes.AT: lambda value, flags: _PLACES[value],
            codes.GROUPREF: lambda value, flags: rf"(?:\{value})",
        }.get(code)
        if writer is None:
            raise UnsupportedError(f"{code} of {self._pattern!r} is not supported")
        return writer(value, flags)

    def _branch(self, value: Parsed, flags: int) -> str:
        return f"(?:{'|'.join(self.sequence(one, flags) for one in value[1])})"

    def _group(self, value: Parsed, flags: int) -> str:
        number, added, removed, parsed = value
        inner = self.sequence(parsed, (flags | added) & ~removed)
        if number is None:
            return f"(?:{inner})"
        return f"(?<{self._names[number]}>{inner})" if number in self._names else f"({inner})"

    def _repeat(self, value: Parsed, flags: int, lazy: str) -> str:
        low, high, parsed = value
        inner = self.sequence(parsed, flags)
        is_atom = len(parsed) == 1 and parsed[0][0] in (codes.IN, codes.LITERAL, codes.SUBPATTERN)
        atom = inner if is_atom else f"(?:{inner})"
        most = "" if high is codes.MAXREPEAT else high
        signs = {(0, ""): "*", (1, ""): "+", (0, 1): "?"}
        return atom + (signs.get((low, most)) or f"{{{low},{most}}}") + lazy

    def _look(self, value: Parsed, flags: int, *, is_positive: bool) -> str:
        direction, parsed = value
        return f"({_LOOKS[direction, is_positive]}{self.sequence(parsed, flags)})"


def _literal(code: int, flags: int) -> str:
    cases = _cases(code, flags)
    return f"[{cases}]" if len(cases) > 1 else _escape(code, "^$\\.*+?()[]{}|/")


def _cases(code: int, flags: int) -> str:
    """The upper and the lower case of a letter, with the flag IGNORECASE."""
    character = chr(code)
    if not flags & re.IGNORECASE or not character.isalpha():
        return ""
    return "".join(dict.fromkeys((character.lower(), character.upper())))


def _item(code: int, flags: int) -> str:
    return _cases(code, flags) or _escape(code, "^-\\[]")


def _escape(code: int, signs: str) -> str:
    character = chr(code)
    if character in signs:
        return f"\\{character}"
    return character if character.isprintable() else f"\\u{{{code:x}}}"


def _class(items: Parsed, flags: int) -> str:
    """A character class; JavaScript cannot put the complement of a class into a class."""
    is_negated = items[0][0] is codes.NEGATE
    own, complements = "", []
    for code, value in items[is_negated:]:
        if code is codes.CATEGORY:
            characters, is_plain = _CATEGORIES[value]
            own += characters if is_plain else ""
            complements += [] if is_plain else [characters]
        else:
            own += _item(value, flags) if code is codes.LITERAL else _range(value, flags)
    if not complements:
        return f"[{'^' * is_negated}{own}]"
    if is_negated:  # in every class of `complements` and not in `own`
        looks = (f"(?![{own}])" if own else "") + "".join(f"(?=[{one}])" for one in complements)
        return f"(?:{looks}[^])"
    return f"(?:{'|'.join([f'[{own}]'] * bool(own) + [f'[^{one}]' for one in complements])})"


def _range(bounds: tuple[int, int], flags: int) -> str:
    low, high = bounds
    own = f"{_escape(low, '^-[]' + chr(92))}-{_escape(high, '^-[]' + chr(92))}"
    if not flags & re.IGNORECASE:
        return own
    letters = [chr(code) for code in range(low, min(high, 0x7F) + 1) if chr(code).isalpha()]
    return own + "".join(letter.swapcase() for letter in letters)
