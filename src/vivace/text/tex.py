"""Replaces TeX formulas by their signs: `$\\frac{1}{2} \\le x^2$` becomes "1/2 ≤ x^2".

Formulas stand between `$`, `$$`, `\\(` and `\\)` or `\\[` and `\\]`. Commands that need no marks,
such as `\\frac{1}{2}`, are read in a text too.
"""

from __future__ import annotations

import re

from vivace.text.spans import join
from vivace.text.tex_reader import find_close, read_formula

MAX_FORMULA = 600  # characters; longer ones are text
MAX_LINE_FORMULA = 200  # between single dollar signs
MAX_ARGUMENT = 200  # between braces
_BLANK_LINE = "\n\n"
# A sign that is escaped, a mark, or a command that is read without marks.
_START = re.compile(
    r"\\(?:[dt]?frac|sqrt|text|math[a-z]{1,6}|boxed)(?![A-Za-z])|\\[(\[]|\\[^A-Za-z]|\$\$?|\\\Z"
    r"|\\[A-Za-z]{0,12}\Z"
)
_CLOSERS = {"\\(": "\\)", "\\[": "\\]", "$$": "$$", "$": "$"}
# What may follow a dollar sign that is not one of money. "$5x" is a formula, "$5k" is none.
_AFTER_DOLLAR = re.compile(
    r"[A-Za-z\\(\[{|−-]|[\d.,]+(?:\$|[\\^_=<{]|[xyzn](?![A-Za-z])|\s[+*=<>\\])"
)
_CLOSING_DOLLAR = re.compile(r"(?<![\s\\])\$(?!\w)")
_STOP = re.compile(r"\n|[.!?]\s")
_MAY_CONTINUE = re.compile(r"[\d.,]*(?:[xyzn]|\s)?\Z")
_HAS_SIGNS = re.compile(r"[\\^_=+*<>{}|≤≥≠≈×÷√∑∫π]|\A-?(?:[A-Za-z]'*\d?|\d+(?:\.\d+)?)!?\Z")
_GAP = r"[^\S\n]*\n?[^\S\n]*"
_ARGUMENT = re.compile(rf"{_GAP}[\[{{]")
_MAY_BE_ARGUMENT = re.compile(rf"{_GAP}\Z")


def read_formulas(text: str) -> str:
    return TexReader().finish(text)


class TexReader:
    """`read_formulas` for a text in pieces. An open formula is held back."""

    def __init__(self) -> None:
        self._held = ""
        self._before = ""  # the last character before the held text

    @property
    def is_open(self) -> bool:
        return bool(self._held)

    def feed(self, piece: str) -> str:
        return self._read(self._held + piece)

    def finish(self, piece: str = "") -> str:
        """Read an open formula as text. The next piece begins another text."""
        rest = self.feed(piece)
        if self._held:  # a blank line ends every formula
            rest += self._read(self._held + _BLANK_LINE)[: -len(_BLANK_LINE)]
        self._before = ""
        return rest

    def _read(self, text: str) -> str:
        if "$" not in text and "\\" not in text:
            return self._keep(text, len(text))
        parts: list[str] = []
        place = read = 0
        while start := _START.search(text, read):
            before = text[start.start() - 1] if start.start() else self._before
            end = _find_end(text, start, before)
            if end is None:
                return join([*parts, self._keep(text, start.start(), place)])
            read = end
            formula = text[start.start() : read]
            if is_formula(formula):
                parts += [text[place : start.start()], read_formula(formula)]
                place = read
        return join([*parts, self._keep(text, len(text), place)])

    def _keep(self, text: str, end: int, begin: int = 0) -> str:
        """Hold the text from `end` on, and return the text between `begin` and `end`."""
        self._before, self._held = text[end - 1 : end] or self._before, text[end:]
        return text[begin:end]


def is_formula(text: str) -> bool:
    """Whether the text between marks is one, or the text is a command with its arguments."""
    closer = _CLOSERS.get(text[:2]) or _CLOSERS.get(text[:1])
    if closer is None:
        return text.endswith("}")  # of its last argument
    inner = text[len(closer) : -len(closer)].strip()
    return len(text) > 2 * len(closer) and text.endswith(closer) and bool(_HAS_SIGNS.search(inner))


def _find_end(text: str, start: re.Match[str], before: str) -> int | None:
    """The end of what begins here, which may be no formula; None if it is not known yet."""
    mark = start[0]
    if start.end() == len(text) and mark not in ("\\(", "\\[", "$$"):
        return None
    if mark == "$":
        return _find_dollar(text, start.end(), before)
    if mark in _CLOSERS:
        return _find_closer(text, start.end(), _CLOSERS[mark])
    if mark[1:2].isalpha():
        if before.isalpha() or before in (":", "\\", "/"):  # a path
            return start.end()
        return _find_arguments(text, start.end(), 2 if mark.endswith("frac") else 1)
    return start.end()  # an escaped sign


def _find_closer(text: str, begin: int, closer: str) -> int | None:
    """The end of a formula that ends with this mark, in the same paragraph."""
    limit = begin + MAX_FORMULA
    blank = text.find(_BLANK_LINE, begin, limit)
    end = text.find(closer, begin, limit if blank < 0 else blank)
    if end >= 0:
        return end + len(closer)
    return begin if blank >= 0 or len(text) >= limit else None


def _find_dollar(text: str, begin: int, before: str) -> int | None:
    """The end of a formula between single dollar signs, in one sentence and line.

    No space stands beside the marks within, and neither letter nor digit beside them without.
    """
    if before.isalnum() or not _AFTER_DOLLAR.match(text, begin):
        is_open = not before.isalnum() and _MAY_CONTINUE.match(text, begin)
        return None if is_open else begin
    limit = begin + MAX_LINE_FORMULA
    stop = _STOP.search(text, begin, limit)
    closer = _CLOSING_DOLLAR.search(text, begin, stop.start() if stop else limit)
    if closer is not None:
        return closer.end() if closer.end() < len(text) else None  # a digit may follow
    return begin if stop or len(text) >= limit else None


def _find_arguments(text: str, begin: int, count: int) -> int | None:
    """The end of the arguments of a command. `begin` if it has fewer."""
    end = begin
    while count:
        opener = _ARGUMENT.match(text, end)
        if opener is None:
            return None if _MAY_BE_ARGUMENT.match(text, end) else begin
        closed = _find_bracket(text, opener.end() - 1)
        if closed is None or closed < 0:
            return None if closed is None else begin
        end = closed
        count -= text[opener.end() - 1] == "{"
    return end


def _find_bracket(text: str, begin: int) -> int | None:
    """The place after the bracket that closes the one at `begin`; None: it may be in later text.

    -1: the paragraph or `MAX_ARGUMENT` characters end before it.
    """
    limit = begin + MAX_ARGUMENT
    blank = text.find(_BLANK_LINE, begin, limit)
    end = find_close(text, begin, limit if blank < 0 else blank)
    if end is not None:
        return end
    return -1 if blank >= 0 or len(text) >= limit else None
