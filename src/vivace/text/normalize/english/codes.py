"""Words of several parts: `B12`, `COVID-19`, `iPhone`, `mid-1990s`, `well—NO`."""

from __future__ import annotations

import re

from vivace.text.normalize.english.capitals import read_word, spell_letters
from vivace.text.normalize.english.numbers import (
    NUMBER,
    cardinal,
    decade,
    decimal,
    in_pairs,
    ordinal,
    plural_number,
    read_digits,
    short_year,
    spell_digits,
    year,
)
from vivace.text.normalize.english.ranges import say_fraction
from vivace.text.normalize.english.signs import INSIDE
from vivace.text.normalize.english.tables import word_map
from vivace.text.normalize.english.unit_names import unit_trail, unit_words
from vivace.text.normalize.rules import Reading, Token, TokenReader, is_beside_operator

_MIXED = re.compile(r"((?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*?)((?:['’]s)?)")
# Llama-3.1-8B, 802.11ac
_WITH_POINT = re.compile(
    r"(?:[A-Za-z]+-|[A-Z]{2,4})?\d+\.\d+(?:-?[A-Za-z]{1,3})?(?:-[A-Za-z0-9]+)*|\d+\.\d+[A-Za-z]{1,3}"
)
_POINTED = re.compile(r"\d+\.\d+|[A-Za-z]+(?=\d+\.)|[A-Za-z0-9]+")
_RUNS = re.compile(r"[A-Za-z]+|\d+")
_CASES = re.compile(r"[A-Z]{2,}(?=[A-Z][a-z]|[^A-Za-z]|\Z)|[A-Z]?[a-z]+|[A-Z]+|\d+")
_CAMEL = re.compile(r"(?=.*[a-z][A-Z])(?!Mc|Mac|De|Di|La|Le|Van|Fitz)[A-Za-z]{3,40}((?:['’]s)?)")
_ION = re.compile(
    r"(Na|Li|Ca|Mg|Cl|OH|Fe|Cu|Zn|NH4|NO3|SO4|HCO3|[A-Z][a-z]?|(?:[A-Z][a-z]?\d{0,2}){2,4}(?=[²³⁺⁻]))"
    r"(?:([23]?)([+-])|([²³]?)([⁺⁻]))"
)
_INDICES = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_MOLECULE = re.compile(r"(?=.*[₀-₉])(?=..+)(?!.[₀-₉]*\Z)(?:[A-Z][a-z]?[₀-₉]*)+")  # "CO₂"
_LOWERED = str.maketrans("²³", "23")
_SERIES = re.compile(r"([A-Z]{1,3})(\d{1,4})[-–—]\1(\d{1,4})")  # "Q1–Q3"
_SIZES = re.compile("(X{0,3}[SML]|XXS)[-–—](X{0,3}[SML])")  # of clothes: "M–XXL"
_SHORT_NAME = re.compile(  # "PCIe", "BSc", not "THe"
    "[A-Z]{3,4}[a-rt-z]|[B-DF-HJ-NP-TV-XZ]{2}[b-df-hj-np-rtv-xz]"
)
_ATOMS = re.compile(  # "HCl", not "HI"
    r"(?=.*[a-z])(?:Na|K|H|Li|Ca|Mg|Zn|Cu|Fe|Ag|Al|Pb)(?:Cl|Br|F|I|OH|O|S)"
)
_LINKS = frozenset(("in", "of", "to", "on", "at", "by", "or"))  # of "one-in-10"
_INNER_CAPITAL = re.compile("[a-z][A-Z]")
_MAX_SPELLED = 5  # letters of a name such as "SpO" of "SpO2"
_QUARTER = re.compile(r"([QH][1-4])['’](\d\d)")
_GRADE = re.compile("[A-F][-−]")
_KNOWN = word_map("brands")
_KEYS = word_map("keys")  # of a keyboard: "Ctrl+C"
_LANGUAGES = word_map("languages")
_HYPHENED = re.compile(
    rf"({NUMBER})-([A-Z]?[a-z]{{2,}}|a(?=-[a-z])|y\.o|[A-Z]?Hz|[KMGT]B|[gmVW])((?:-(?:[A-Za-z]{{2,}}|a))*)"
)
_CHORD = re.compile(r"([A-G])[#♯](m|maj|min|dim|sus|add|)(\d{0,2})")  # "F#m7"
_MODELS = re.compile(r"([A-Z][A-Za-z]{0,9}-?\d{1,3})s")  # "F-16s", "A380s"
_TERM = re.compile(r"\d*(?:[nxyz][²³]?|[A-Za-z][²³]|[α-ω][²³]?)")
_TEAM = re.compile(r"(\d{2})ers")  # "49ers"
_ENDS = "noon|midnight|present|now|today"
_TIME_OR_YEAR = r"\d{1,4}(?::\d\d)?(?:[ap]m)?"
_OPEN_SPAN = re.compile(  # "9-noon", "2010–present", "1960s-70s"
    rf"(?P<low>{_TIME_OR_YEAR}|{_ENDS}|\d{{4}}s(?=[-–—]['’]?\d+s))[-–—]"
    rf"(?P<high>(?<=[a-z][-–—]){_TIME_OR_YEAR}|{_ENDS}|['’]?\d{{2,4}}s)"
)
_ZONE = re.compile(r"(UTC|GMT)([-−–+])(\d{1,2}(?::\d\d)?)")
_FEET = re.compile(r"(\d{1,2})['’′](\d{1,2})(?:[\"”″]|'')?")
_ORDINAL = re.compile(r"(\d{1,9})(?:st|nd|rd|th)")
# Words between hyphens that are read on their own: `20th-century`, `mid-90s`, `3-in-1`.
_APART = re.compile(
    r"(?:.*-)?['’]?(?:\d+(?:st|nd|rd|th)|\d{1,3}0s)(?:-.*)?|\d+(?:-(?:to|in|of|for|on|by)-\d+)+(?:-[a-z-]+)?"
)
_JOINTS = re.compile(r"(->|=>|—|…|\.{2,}|[-–/&+=@±×÷<>≤≥≈≠→°√∞²³%^_|~#*:;,!?()\[\]{}\"“”$€£])")
_SIDES = re.compile(r"(->|=>|[<>!=]=|[/=@→≈])")
_SIDE_JOINTS = {
    "->": "to",
    "=>": "to",
    "==": "equals",
    ">=": "is at least",
    "<=": "is at most",
    "!=": "is not",
}
_DIFFERENCE = re.compile(r"^(\d+)([-−*])(\d+)$")
_NUMBER = re.compile(NUMBER)
_DECADE = re.compile(r"['’]?(\d{1,3}0)s")
_CAPITALS = re.compile(r"[A-Z]{2,}")


def split_case(word: str) -> list[str]:
    """`goodMorning` as `good` and `Morning`."""
    return _CASES.findall(word)


def read_code(reader: TokenReader, token: Token) -> Reading | None:
    core = token.core
    if core in _LANGUAGES:
        return Reading(_LANGUAGES[core])
    if found := _QUARTER.fullmatch(core):
        return Reading(f"{read_mixed(found[1])} {short_year(found[2])}")
    if _GRADE.fullmatch(core):
        return Reading(f"{core[0]} minus")
    if _MOLECULE.fullmatch(core):
        return Reading(reader.read_alone(core.translate(_INDICES)))
    if (found := _ION.fullmatch(core.translate(_INDICES))) and (len(found[1]) > 1 or found[5]):
        return Reading(_read_ion(found))
    if _ATOMS.fullmatch(core):
        return Reading(spell_letters(core))
    if found := _SIZES.fullmatch(core):
        return Reading(f"{spell_letters(found[1])} to {spell_letters(found[2])}")
    if found := _SHORT_NAME.fullmatch(core):
        return Reading(spell_letters(core))
    if found := _SERIES.fullmatch(core):
        first, last = (read_mixed(found[1] + found[end]) for end in (2, 3))
        return Reading(f"{first} to {last}")
    if found := _FEET.fullmatch(core):
        words = f"{cardinal(int(found[1]))} foot {cardinal(int(found[2]))}"
        return Reading(words, trail=token.trail.removeprefix('"').removeprefix("”"))
    if found := _CHORD.fullmatch(core):
        kind = {"m": "minor", "": ""}.get(found[2], found[2])
        return Reading(" ".join(filter(None, [found[1], "sharp", kind, read_mixed(found[3])])))
    if found := _MODELS.fullmatch(core):
        return Reading(plural_number(read_mixed(found[1])))
    if found := _TEAM.fullmatch(core):
        number = cardinal(int(found[1]))
        return Reading(f"{number}{'rs' if number.endswith('e') else 'ers'}")
    if found := _OPEN_SPAN.fullmatch(core):
        first, last = (reader.read_alone(found[end]) for end in ("low", "high"))
        return Reading(f"{first} to {last}")
    if found := _ZONE.fullmatch(core):
        sign = "plus" if found[2] == "+" else "minus"
        return Reading(f"{spell_letters(found[1])} {sign} {reader.read_alone(found[3])}")
    if found := _HYPHENED.fullmatch(core):  # 10-year-old, 5-km
        return _read_hyphened(reader, token, found)
    if "-" in core and _APART.fullmatch(core):
        return read_compound(reader, token)
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


def _read_hyphened(reader: TokenReader, token: Token, found: re.Match[str]) -> Reading:
    """`10-year-old`, `5-km`, `a 13-in. pan`, `(14-oz.) can`."""
    is_dotted = token.trail.startswith(".")
    name = {"pt": "point", "in": "inch" if is_dotted else None}.get(
        found[2], unit_words(found[2], "1")
    )
    words = f"{_read_part(found[1])}{f' {name}' if name else f'-{found[2]}'}{found[3]}"
    is_inside = token.trail.startswith(".)") or (token.trail == "." and reader.token(1) is not None)
    trail = unit_trail(reader, found[2], 0) if name else None
    if name and is_inside:
        trail = token.trail[1:]  # "a 5-qt. Dutch oven"
    return Reading(words, trail=trail)


def _read_ion(found: re.Match[str]) -> str:
    """`Ca²⁺` as "C A two plus"."""
    charge = (found[2] or found[4] or "").translate(_LOWERED)
    sign = "plus" if (found[3] or found[5]) in "+⁺" else "minus"
    name = " ".join(read_digits(c) if c.isdecimal() else c.upper() for c in found[1])
    return " ".join(filter(None, [name, charge and read_digits(charge), sign]))


def _read_case(part: str) -> str:
    return read_word(part, is_loud=False) if part.isupper() and len(part) > 1 else part


def read_mixed(text: str) -> str:
    """Read runs of letters and runs of digits one after the other."""
    parts = _RUNS.findall(text)
    return " ".join(
        _digits(part) if part.isdecimal() else _letters(part, len(parts)) for part in parts
    )


def _letters(part: str, num_parts: int) -> str:
    if len(part) == 1:
        return part.upper() if num_parts > 1 else part
    if part.isupper():
        return spell_letters(part) if len(part) == 2 else read_word(part, is_loud=False)
    if part.lower() in _KNOWN:
        return _KNOWN[part.lower()]
    if part in _LINKS:
        return part
    if len(part) <= _MAX_SPELLED and _INNER_CAPITAL.search(part):
        return spell_letters(part)
    return part if re.search("[aeiouy]", part.lower()) and len(part) > 2 else spell_letters(part)


def _digits(part: str) -> str:
    if len(part) == 3 and part[1:] != "00" and part[0] != "0":
        return in_pairs(part)
    if len(part) == 4 and part[0] != "0" and not part.endswith("000"):
        return in_pairs(part)
    return spell_digits(part) if len(part) > 4 else read_digits(part)


def read_compound(reader: TokenReader, token: Token) -> Reading | None:
    if (words := _read_sides(reader, token.core)) is not None:
        return Reading(words)
    parts = [part for part in _JOINTS.split(token.core) if part]
    if len(parts) < 2 or not any(map(_is_changed, parts)):
        return None
    return Reading("".join(_read_parts(parts)))


def _read_sides(reader: TokenReader, text: str) -> str | None:
    """The sides of `p50=12ms`, `23cm/9in`, `2.31→0.47`, each read on its own."""
    sides = _join_fractions(_SIDES.split(text))
    if len(sides) < 3 or not all(any(map(str.isalnum, side)) for side in sides[::2]):
        return None
    if not any(map(str.isdigit, text)):
        return None
    if "=" in sides:  # "7-3=4"
        sides = [_DIFFERENCE.sub(r"\1 \2 \3", side) for side in sides]
    words = [reader.read_alone(side) for side in sides[::2]]
    joints = [_SIDE_JOINTS.get(joint) or INSIDE[joint] for joint in sides[1::2]]
    if _is_quotient(sides) or (_is_short_quotient(sides) and is_beside_operator(reader)):
        joints = ["over"] * len(joints)
    return " ".join([words[0], *(f"{a} {b}" for a, b in zip(joints, words[1:], strict=True))])


def _join_fractions(sides: list[str]) -> list[str]:
    """`1/3`, `≈` and `0.333` of `1/3≈0.333`."""
    joined = sides[:1]
    for joint, side in zip(sides[1::2], sides[2::2], strict=True):
        is_part = joint == "/" and set(sides[1::2]) != {"/"}
        if is_part and say_fraction(f"{joined[-1]}/{side}") is not None:
            joined[-1] += f"/{side}"
        else:
            joined += [joint, side]
    return joined


def _is_quotient(sides: list[str]) -> bool:
    """Whether the sides are terms of a quotient: `π²/6`, `1/n²`, `4y/5`."""
    terms = [side for side in sides[::2] if not side.isdigit()]
    return set(sides[1::2]) == {"/"} and bool(terms) and all(map(_TERM.fullmatch, terms))


def _is_short_quotient(sides: list[str]) -> bool:
    """Whether a digit or letter stands over another: `1/N`."""
    return set(sides[1::2]) == {"/"} and all(len(side) == 1 for side in sides[::2])


def _is_changed(part: str) -> bool:
    return _read_part(part) != part or part in INSIDE or part in ("->", "=>")


def _read_parts(parts: list[str]) -> list[str]:
    """The spoken words of the parts; a hyphen between plain words stays."""
    spoken: list[str] = []
    for place, part in enumerate(parts):
        if not _JOINTS.fullmatch(part):
            spoken.append(_read_part(part))
        elif part in "-–":
            is_plain = 0 < place < len(parts) - 1 and all(
                neighbour.isalpha() and not _CAPITALS.fullmatch(neighbour)
                for neighbour in (parts[place - 1], parts[place + 1])
            )
            spoken.append("-" if is_plain else " ")
        elif part in "—…" or part.startswith(".."):
            spoken.append(" - " if part == "—" else "... ")
        elif part in ",;:!?":
            spoken.append(f"{part} ")
        else:
            word = "to" if part in ("->", "=>") else INSIDE.get(part, "")
            spoken.append(f" {word} " if word else " ")
    return spoken


def _read_part(part: str) -> str:
    if part in _KEYS:
        return _KEYS[part]
    if re.fullmatch(r"\.\d+", part):
        return decimal(part)
    if _NUMBER.fullmatch(part):
        is_year = part.isdecimal() and len(part) == 4 and 1900 <= int(part) <= 2099
        return year(int(part)) if is_year else decimal(part)
    if found := _DECADE.fullmatch(part):
        return decade(found[1])
    if found := _ORDINAL.fullmatch(part):
        return ordinal(int(found[1]))
    if _CAPITALS.fullmatch(part):
        return read_word(part, is_loud=False)
    if part.isalnum() and not part.isalpha():
        return read_mixed(part)
    return part
