"""Reads one TeX formula."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from vivace.text.spans import join, rewrite, substitute

_TOKEN = re.compile(r"\\[A-Za-z]+\*?|\\.|[{}^_&~]|\s+|[^\\{}^_&~\s]|\\")
_MARKS = re.compile(r"\A(?:\$\$?|\\[(\[])|(?:\$\$?|\\[)\]])\Z")
_BRACKETS = {"{": re.compile(r"\\.|[{}]"), "[": re.compile(r"\\.|[\[\]]")}
_DEGREE = re.compile(r"\[([^\[\]]*)\]")
_SIMPLE = re.compile(r"[-+−]?[A-Za-z0-9α-ωΑ-Ω∞]{1,3}")
_SHORT = re.compile(r"[A-Za-zα-ωΑ-Ω]|\d+(?:\.\d+)?|\d{1,3}[A-Za-zα-ω]")
_DIFFERENTIAL = re.compile(r"[d∂][²³]?[A-Za-zα-ω]?[²³]?")  # of a derivative
_OPERAND = re.compile(r"\s*(?:\d*[A-Za-z]|\d+|\\[a-z]+)(?![A-Za-z({_^])")  # of a function
_LOWERED = str.maketrans("_0123456789", " ₀₁₂₃₄₅₆₇₈₉")
_LOOSE = re.compile(r".[^()]*[-+−±]")  # needs brackets in a fraction
_MAX_DEPTH = 20
_SPACE = re.compile(r"\s+")
_EXTRA_SPACE = re.compile(r"\s+(?=,)|\s+(?=\s)")
_RAISED = {"2": "²", "3": "³"}  # others are written as "^4"
_OPERATORS = frozenset("+=<>×÷±∓≤≥≠≈≪≫≡∝→←⇒⇔∈∉⊂⊆∪∩∧∨⊥∥-−")

_COMMANDS = json.loads(Path(__file__).with_name("tex_commands.json").read_text("utf-8"))
_SYMBOLS: dict[str, str] = _COMMANDS["symbols"]
_KINDS = {  # of the other commands
    name: kind for kind, names in _COMMANDS.items() if kind != "symbols" for name in names.split()
}
_WITH_BOUNDS = frozenset(("∑", "∏", "∫", "∬", "∮", "lim"))
_NEXT_BOUND = re.compile(r"\s*(?:\\(?:no)?limits)?\s*([_^])")
_ROOTS = {"": "√", "2": "√", "3": "∛", "4": "∜"}
_ACCENTS = {"vec": "vector", "hat": "hat", "bar": "bar", "tilde": "tilde", "dot": "dot"}
_SPACES = frozenset(("\\quad", "\\qquad", "\\,", "\\;", "\\:", "\\ ", "\\!", "~"))


def read_formula(text: str) -> str:
    """The formula without its marks, in signs."""
    inner = text
    for mark in [*_MARKS.finditer(text)][::-1]:
        inner = inner[: mark.start()] + inner[mark.end() :]
    return substitute(_EXTRA_SPACE, "", _Formula(inner).read()).strip()


def find_close(text: str, begin: int, limit: int) -> int | None:
    """The place after the bracket that closes the one at `begin`, before `limit`."""
    depth = 0
    for bracket in _BRACKETS[text[begin]].finditer(text, begin, limit):
        if bracket[0][0] != "\\":  # not escaped
            depth += 1 if bracket[0] in "{[" else -1
        if not depth:
            return bracket.end()
    return None


class _Formula:
    def __init__(self, text: str, depth: int = 0) -> None:
        self._text, self._place, self._depth = text, 0, depth

    def read(self) -> str:
        parts: list[str] = []
        while self._place < len(self._text):
            part = self._read_next()
            parts.append(_space(part, parts))
        return join(parts)

    def _read_next(self) -> str:
        token = _TOKEN.match(self._text, self._place)
        assert token is not None
        begin, self._place = self._place, token.end()
        sign = token[0]
        if sign[0] == "\\" and sign[1:2].isalpha():
            return self._read_command(sign[1:].rstrip("*"), begin)
        if sign in ("^", "_"):
            return self._read_script(sign)
        if sign in _SPACES or sign.isspace():
            return " "
        if sign == "\\\\":
            return ", "
        if sign[0] == "\\":
            return self._text[begin + 1 : token.end()]
        return "" if sign in "{}&" else self._text[begin : token.end()]

    def _read_command(self, name: str, begin: int) -> str:
        sign = _SYMBOLS.get(name) or self._text[begin + 1 : self._place]  # or a name: "sin"
        if sign in _WITH_BOUNDS:
            return join([sign, self._read_bounds()])
        if name in _SYMBOLS:
            return sign
        kind = _KINDS.get(name)
        if kind == "fractions":
            return _divide(self._argument(), self._argument())
        if kind == "binomials":
            return join(["C(", self._argument(), ", ", self._argument(), ")"])
        if kind == "texts":
            return self._raw_argument()
        if kind == "wrappers":
            return self._argument()
        if kind == "environments":
            self._raw_argument()
            return ""
        if kind == "dropped":
            self._place += self._text.startswith(".", self._place)
            return ""
        if kind == "functions":
            return join([sign, self._read_operand()])
        if name in _ACCENTS:
            return _accent(name, self._argument())
        if name == "sqrt":
            return self._read_root()
        return sign

    def _read_operand(self) -> str:
        """What follows a function: "(x)" of `\\sin x`, "₂(8)" of `\\log_2 8`."""
        scripts = ""
        while self._text[self._place : self._place + 1] in ("_", "^"):
            sign = self._text[self._place]
            self._place += 1
            script = self._read_script(sign)
            scripts += script.translate(_LOWERED).strip() if sign == "_" else script
        operand = _OPERAND.match(self._text, self._place)
        if operand is None:
            return scripts
        self._place = operand.end()
        inner = operand[0].strip()
        if inner[0] == "\\":
            inner = _Formula(inner, self._depth + 1).read()
        return join([scripts, "(", inner, ")"])

    def _read_root(self) -> str:
        degree = ""
        if found := _DEGREE.match(self._text, self._place):
            degree, self._place = found[1], found.end()
        root = _ROOTS.get(degree)
        inner = self._argument()
        if root is None:
            return join([_bracket(inner), f"^(1/{degree})"])
        return join([root, inner if _SHORT.fullmatch(inner) else join(["(", inner, ")"])])

    def _read_bounds(self) -> str:
        """The bounds of a sum, an integral or a limit: "[i=1→n]", "[x→0]"."""
        bounds = {"_": "", "^": ""}
        while found := _NEXT_BOUND.match(self._text, self._place):
            self._place = found.end()
            bounds[found[1]] = substitute(_SPACE, "", self._argument())
        known = [bound for bound in bounds.values() if bound]
        return join(["[", join(known, "→"), "]"]) if known else ""

    def _read_script(self, sign: str) -> str:
        script = substitute(_SPACE, "", self._argument())
        if script in ("°", "'", "''", "*"):
            return script
        if sign == "^" and script in _RAISED:
            return _RAISED[script]
        if sign == "_" or _SIMPLE.fullmatch(script):
            return join([sign, script])
        return join(["^(", script, ")"])

    def _argument(self) -> str:
        """The next group, command or sign, read."""
        self._skip_spaces()
        is_deep = self._depth >= _MAX_DEPTH
        if self._text.startswith("{", self._place):
            inner = self._raw_argument()
            return inner if is_deep else _Formula(inner, self._depth + 1).read()
        if is_deep or self._place == len(self._text):
            return ""
        self._depth += 1
        part = self._read_next()
        self._depth -= 1
        return part

    def _raw_argument(self) -> str:
        """The text of the next group."""
        self._skip_spaces()
        if not self._text.startswith("{", self._place):
            return ""
        begin, length = self._place, len(self._text)
        end = find_close(self._text, begin, length)
        self._place = end or length
        return self._text[begin + 1 : end - 1 if end else length]

    def _skip_spaces(self) -> None:
        while self._text[self._place : self._place + 1].isspace():
            self._place += 1


def _space(part: str, before: Sequence[str]) -> str:
    """`part` with spaces around an operator, and between a factor and a fraction."""
    last = next((one for one in reversed(before) if one and not one.isspace()), "")
    is_binary = last[-1:].isalnum() or last[-1:] in tuple(")²³'!")
    if part in _OPERATORS and (is_binary or part not in "-−"):
        return join([" ", rewrite(part, "−") if part == "-" else part, " "])
    if part == "-" and last.rstrip().endswith(","):
        return rewrite(part, "−")  # "x, -x": no hyphen
    is_word = part[:2].isalpha() and len(part) > 2 and part[:1].isascii()  # "sin(x)"
    is_apart = is_word or any("/" in one or "÷" in one for one in (part, last))
    is_near = bool(before) and before[-1][-1:].isalnum()
    is_near = is_near and (part[:1].isalnum() or part[:1] in _WITH_BOUNDS)
    return join([" ", part]) if is_apart and is_near else part


def _divide(above: str, below: str) -> str:
    is_short = _SHORT.fullmatch(above) and _SHORT.fullmatch(below)
    parts = [substitute(_SPACE, "", part) for part in (above, below)]
    if all(map(_DIFFERENTIAL.fullmatch, parts)):
        return join(parts, "/")  # "dy/dx"
    is_improper = above.isdecimal() and below.isdecimal() and int(above) >= int(below)
    if is_short and not is_improper:  # "8/2" may be a date
        return join([above, "/", below])
    return join([_bracket(above), " ÷ ", _bracket(below)])


def _accent(name: str, text: str) -> str:
    """`\\vec{F}` as "vector F", `\\bar{x}` as "x bar"; other accents are left out."""
    if not (len(text) == 1 and text.isalpha()):
        return text
    return join([" ", "vector ", text]) if name == "vec" else join([text, f" {_ACCENTS[name]} "])


def _bracket(text: str) -> str:
    return join(["(", text, ")"]) if _LOOSE.match(text) else text
