"""Functions in formulas: `f(x)`, `f'(t)`, `sin²(x)`, `P(A|B)`, `O(n log n)`, `|x|`."""

from __future__ import annotations

import re

from vivace.text.normalize.english.numbers import NUMBER, cardinal, decimal
from vivace.text.normalize.english.signs import greek_name
from vivace.text.normalize.english.tables import word_map
from vivace.text.normalize.rules import Reading, Token, TokenReader

_FUNCTIONS = word_map("functions")
_SIGNS = word_map("signs")
_PUNCTUATION = ".,;:!?"
_MAX_TOKENS = 8  # words of one function and its arguments
_RAISED = {"²": "squared", "³": "cubed", "⁻¹": "inverse"}
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_GREEK = "α-ωΑ-Ω"
_CALL = re.compile(
    rf"(?P<name>{'|'.join(sorted(_FUNCTIONS, key=len, reverse=True))}|[A-Za-z{_GREEK}])"
    r"(?P<base>[₀-₉]{1,3}|(?<=log)(?:2|10))?(?P<primes>['’′]{0,3})(?P<raised>²|³|⁻¹)?\("
)
_PART = re.compile(
    rf"(?P<call>{re.sub(r'[(][?]P<[a-z]+>', '(?:', _CALL.pattern)})|(?P<number>{NUMBER})"
    rf"|(?P<word>[A-Za-z]+|[{_GREEK}])(?P<index>_?[0-9₀-₉]{{1,3}})?|(?P<power>\^[-−]?\w{{1,3}})"
    r"|(?P<raised>[²³])|(?P<sign>[-+−–*·⋅×/÷=<>≤≥≠≈±|∞√∂∩∪∈∉⊂⊆∧∨¬→])|(?P<plain>[(){}\[\],;\s])"
)
_WORDS = {
    **{sign: _SIGNS[sign] for sign in "+*⋅×÷=<>≤≥≠≈±∞√∂∩∪∈∉⊂⊆∧∨¬→"},
    **dict.fromkeys("-−–", "minus"),
    "/": "over",
    "|": "given",
    "·": "times",
}
_ENGLISH = frozenset(("a(n)", "A(n)", "s(he)"))
_DOLLARS = re.compile(  # not those of "$5", "5$" and "US$5"
    rf"\A\$(?=[\\({_GREEK}A-Za-z])|(?<=[{_GREEK}A-Za-z)}}\]])\$\Z|(?<=[\^_]\d)\$\Z"
)
_ORIGIN = re.compile(r"[A-Z]{1,3}\$")  # "R$ 50"
_BOUNDS = re.compile(  # as `tex_reader.py` writes them: "∑[i=1→n]", "∫[C]", "lim[x→0]"
    r"(?P<sign>[∑∏∫∬∮]|lim(?=.+→))\[(?P<low>[^\[\]]+?)(?:→(?P<high>[^\[\]]+))?\]"
)
_BOUNDED = {
    "∑": "sum", "∏": "product", "∫": "integral", "∬": "double integral", "∮": "integral",
    "lim": "limit",
}  # fmt: skip
_POWER = re.compile(
    rf"([A-Za-z{_GREEK}]|\d+)\^(?:\(([^()]+)\)|([-−](?:[A-Za-z]{{1,2}}|[{_GREEK}])))"
)
_DERIVATIVE = re.compile(
    r"(?P<sign>[d∂])(?P<above>[²³]?)(?P<name>[A-Za-zα-ω]?)/(?P=sign)(?P<below>[A-Za-zα-ω])[²³]?"
)
_DIFFERENTIALS = {"d": "d", "∂": "partial"}
_ABSOLUTE = re.compile(r"\|([A-Za-z]|[-−]?\d+|[A-Za-z] ?[-+−] ?[A-Za-z\d])\|")


def read_formula(reader: TokenReader, token: Token) -> Reading | None:
    """A function with its arguments, which may have spaces in them; an absolute value."""
    if found := _ABSOLUTE.fullmatch(token.text.rstrip(_PUNCTUATION)):
        trail = token.text[found.end() :]
        return Reading(f"the absolute value of {_read(found[1])}", lead="", trail=trail)
    if "(" not in token.core or not _CALL.match(token.core) or token.core + ")" in _ENGLISH:
        return None
    text, num_tokens = _collect(reader)
    formula = text.rstrip(_PUNCTUATION)
    while formula.endswith(")") and formula.count(")") > formula.count("("):  # "(see f(x))"
        formula = formula[:-1].rstrip(_PUNCTUATION)
    words = _read(formula) if _is_formula(formula) else None
    return None if words is None else Reading(words, num_tokens, trail=text[len(formula) :])


def read_bounds(reader: TokenReader, token: Token) -> Reading | None:
    """Read sums, integrals and limits with bounds, derivatives (`dy/dx`), powers (`e^(-x²)`)."""
    text = token.text.rstrip(_PUNCTUATION)
    if found := _DERIVATIVE.fullmatch(text):
        return Reading(_read_derivative(found), lead="", trail=token.text[len(text) :])
    if found := _POWER.fullmatch(text):
        power = _read(found[2] or found[3])
        words = f"{reader.read_alone(found[1])} to the power of {power}"
        return None if power is None else Reading(words, lead="", trail=token.text[len(text) :])
    bounds = _BOUNDS.fullmatch(text)
    if bounds is None:
        return None
    low, high = _read(bounds["low"]), _read(bounds["high"] or "")
    if low is None or high is None:
        return None
    if bounds["sign"] == "lim":
        words = f"as {low} approaches {high}"
    else:
        words = f"from {low} to {high}" if high else f"over {low}"
    return Reading(
        f"the {_BOUNDED[bounds['sign']]} {words} of", lead="", trail=token.text[len(text) :]
    )


def _read_derivative(found: re.Match[str]) -> str:
    """`d²y/dx²` as "d squared y by d x squared", `d/dx` as "the derivative by x of"."""
    below, power = _name(found["below"]), _RAISED.get(found["above"], "")
    if not found["name"]:
        kind = {"squared": "second ", "cubed": "third "}.get(power, "")
        partial = "partial " if found["sign"] == "∂" else ""
        return f"the {kind}{partial}derivative by {below} of"
    sign = _DIFFERENTIALS[found["sign"]]
    return " ".join(f"{sign} {power} {_name(found['name'])} by {sign} {below} {power}".split())


def read_math_marks(reader: TokenReader, token: Token) -> Reading | None:
    """Remove the dollar signs around a formula: `$x$`, the first and the last of `$E = mc^2$`."""
    if "$" not in token.core or _ORIGIN.fullmatch(token.core):
        return None
    text = _DOLLARS.sub("", token.core)
    return None if text == token.core else Reading(reader.read_alone(text))


def _collect(reader: TokenReader) -> tuple[str, int]:
    """The text of a function until its brackets are closed, and its words."""
    text = ""
    for index in range(_MAX_TOKENS):
        token = reader.token(index)
        if token is None:
            break
        text += (" " if index else "") + (token.text if index else token.core + token.trail)
        if text.count("(") <= text.count(")"):
            return text, index + 1
    return "", 1


def _is_formula(text: str) -> bool:
    """Whether the text is a function with arguments, unlike `s(he)`, `p(erson)` or item `B(2)`."""
    call = _CALL.match(text)
    if call is None or text.count("(") != text.count(")"):
        return False
    inner = text[call.end() :].partition(")")[0]
    names = re.findall(r"[A-Za-z]{2,}", inner)
    if call["name"].isupper() and call["name"] != "O" and inner.isdecimal():
        return False
    has_signs = re.search(r"[^\sA-Za-z,(]", inner) is not None
    return bool(inner.strip()) and all(
        name in _FUNCTIONS or (has_signs and len(name) <= 3) for name in names
    )


def _read(text: str) -> str | None:
    """The words of a formula; None if it has other characters."""
    words: list[str] = []
    place = 0
    while place < len(text):
        part = _PART.match(text, place)
        if part is None:
            return None
        is_product = part["call"] and _is_product(part["call"], text[part.end() :])
        is_product = is_product or (part["plain"] == "(" and text[place - 1 : place] == ")")
        words.append(_read_part(part))
        if is_product:
            words[-1] = f"{words[-1].removesuffix(' of')} times"
        place = part.end()
    return re.sub(r"\s+(?=,)", "", " ".join(" ".join(words).split()))


def _is_product(call: str, following: str) -> bool:
    """Whether a letter before a bracket is a factor: `n(n+1)`, `a(b+c)`, unlike `f(x)`, `x(t)`."""
    name, inner = call[:-1], following.partition(")")[0]
    is_sum = re.search(r"\w\s*[-+−]", inner) is not None
    is_inside = name in re.findall(r"[A-Za-z]+", inner)
    return len(name) == 1 and is_sum and (is_inside or name in "abcdkmnr")


def _read_part(part: re.Match[str]) -> str:
    if part["call"]:
        return _read_call(part["call"])
    if part["number"]:
        return decimal(part["number"])
    if part["word"]:
        name = _name(part["word"])
        index = (part["index"] or "").lstrip("_").translate(_LOWERED)
        return f"{name} {cardinal(int(index))}" if index else name
    if part["power"]:
        return _read_power(part["power"][1:])
    if part["raised"]:
        return _RAISED[part["raised"]]
    if part["sign"]:
        return _WORDS[part["sign"]]
    return "," if part["plain"] in ",;" else " "


def _read_call(text: str) -> str:
    call = _CALL.fullmatch(text)
    assert call is not None
    words = [_name(call["name"])]
    if call["base"]:
        base = cardinal(int(call["base"].translate(_LOWERED)))
        words.append(f"base {base}" if call["name"] in _FUNCTIONS else base)
    words += [("", "prime", "double prime", "triple prime")[len(call["primes"])]]
    words += [_RAISED.get(call["raised"] or "", "")]
    return " ".join([*filter(None, words), "of"])


def _read_power(power: str) -> str:
    sign = "minus " if power[0] in "-−" else ""
    power = power.lstrip("-−")
    if power in ("2", "3") and not sign:
        return {"2": "squared", "3": "cubed"}[power]
    words = cardinal(int(power)) if power.isascii() and power.isdecimal() else power
    return f"to the power of {sign}{words}"


def _name(name: str) -> str:
    if name.isascii():
        return _FUNCTIONS.get(name, name)
    return greek_name(name)
