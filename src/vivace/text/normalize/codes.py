"""Letters and digits together: `B12`, `A4`, `3D`, `COVID-19`, `H2O`, `iPhone`."""

from __future__ import annotations

import re

from vivace.text.normalize.capitals import read_word, spell_letters
from vivace.text.normalize.numbers import cardinal, decimal, in_pairs, read_digits, spell_digits
from vivace.text.normalize.reading import Reading
from vivace.text.normalize.tokens import TokenReader

_MIXED = re.compile(r"((?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*?)((?:['’]s)?)")
# Llama-3.1-8B, 802.11ac
_WITH_POINT = re.compile(
    r"(?:[A-Za-z]+-)?\d+\.\d+(?:-?[A-Za-z]{1,3})?(?:-[A-Za-z0-9]+)*|\d+\.\d+[A-Za-z]{1,3}"
)
_POINTED = re.compile(r"\d+\.\d+|[A-Za-z0-9]+")
_RUNS = re.compile(r"[A-Za-z]+|\d+")
_CASES = re.compile(r"[A-Z]{2,}(?=[A-Z][a-z]|[^A-Za-z]|\Z)|[A-Z]?[a-z]+|[A-Z]+|\d+")
_CAMEL = re.compile(r"(?=.*[a-z][A-Z])(?!Mc|Mac|De|Di|La|Le|Van|Fitz)[A-Za-z]{3,40}((?:['’]s)?)")
_KNOWN = {
    "phd": "P H D", "ios": "i O S", "macos": "mac O S", "wifi": "wye fye", "iphone": "eye phone",
    "ipad": "eye pad", "ebay": "e bay", "youtube": "you tube", "latex": "lay tech",
    "openai": "open A I", "linkedin": "linked in", "paypal": "pay pal", "chatgpt": "chat G P T",
    "mysql": "my S Q L", "postgresql": "post gres S Q L", "javascript": "java script",
}  # fmt: skip
_LANGUAGES = {"C#": "C sharp", "F#": "F sharp", "C++": "C plus plus", "G++": "G plus plus"}
_HYPHENED = re.compile(r"(\d+(?:\.\d+)?)((?:-[A-Za-z]{2,})+)")
_FEET = re.compile(r"(\d{1,2})['’′](\d{1,2})(?:[\"”″]|'')?")


def split_case(word: str) -> list[str]:
    """`goodMorning` as `good` and `Morning`."""
    return _CASES.findall(word)


def read_code(reader: TokenReader) -> Reading | None:
    token = reader.token()
    assert token is not None
    core = token.core
    if core in _LANGUAGES:
        return Reading(_LANGUAGES[core])
    if found := _FEET.fullmatch(core):
        words = f"{cardinal(int(found[1]))} foot {cardinal(int(found[2]))}"
        return Reading(words, trail=token.trail.removeprefix('"').removeprefix("”"))
    if found := _HYPHENED.fullmatch(core):
        return Reading(f"{decimal(found[1])}{found[2]}")  # 10-year-old
    if found := _MIXED.fullmatch(core):
        return Reading(read_mixed(found[1]) + found[2])
    if _WITH_POINT.fullmatch(core) and any(letter.isalpha() for letter in core):
        parts = (decimal(p) if "." in p else read_mixed(p) for p in _POINTED.findall(core))
        return Reading(" ".join(parts))
    if found := _CAMEL.fullmatch(core):
        plain = core.removesuffix(found[1])
        words = _KNOWN.get(plain.lower()) or " ".join(map(_read_case, split_case(plain)))
        return Reading(words + found[1])
    return None


def _read_case(part: str) -> str:
    return read_word(part, is_loud=False) if part.isupper() and len(part) > 1 else part


def read_mixed(text: str) -> str:
    """Runs of letters and runs of digits, one after the other."""
    parts = _RUNS.findall(text)
    return " ".join(
        _digits(part) if part.isdecimal() else _letters(part, len(parts)) for part in parts
    )


def _letters(part: str, num_parts: int) -> str:
    if len(part) == 1:
        return part.upper() if num_parts > 1 else part
    if part.isupper():
        return read_word(part, is_loud=False)
    if part.lower() in _KNOWN:
        return _KNOWN[part.lower()]
    return part if re.search("[aeiouy]", part.lower()) and len(part) > 2 else spell_letters(part)


def _digits(part: str) -> str:
    if len(part) == 3 and part[1:] != "00" and part[0] != "0":
        return in_pairs(part)
    if len(part) == 4 and part[0] != "0" and not part.endswith("000"):
        return in_pairs(part)
    return spell_digits(part) if len(part) > 4 else read_digits(part)
