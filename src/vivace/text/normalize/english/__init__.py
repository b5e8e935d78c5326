"""Normalization rules for English; the word tables are in words.json."""

from __future__ import annotations

import re
from collections.abc import Sequence

from vivace.text.normalize.english.abbreviations import (
    WITH_STOP,
    WITHOUT_STOP,
    read_abbreviation,
)
from vivace.text.normalize.english.addresses import read_address
from vivace.text.normalize.english.angles import read_angle, read_ordinal_sign
from vivace.text.normalize.english.capitals import read_capitals
from vivace.text.normalize.english.codes import read_code, read_compound
from vivace.text.normalize.english.dates import NAMES, read_date
from vivace.text.normalize.english.decimal_commas import read_decimal_comma
from vivace.text.normalize.english.durations import read_duration
from vivace.text.normalize.english.formulas import read_bounds, read_formula, read_math_marks
from vivace.text.normalize.english.money import read_money
from vivace.text.normalize.english.numbers import SMALL_NUMERALS
from vivace.text.normalize.english.phones import read_phone
from vivace.text.normalize.english.powers import read_power
from vivace.text.normalize.english.ranges import read_cross, read_fraction, read_range
from vivace.text.normalize.english.references import read_reference
from vivace.text.normalize.english.signs import (
    plain_signs,
    read_leftovers,
    read_sign,
    read_stroke,
    read_tag,
)
from vivace.text.normalize.english.source_code import read_source
from vivace.text.normalize.english.times import read_time
from vivace.text.normalize.english.unit_names import LONE_UNITS, SPELLED_UNITS, read_unit
from vivace.text.normalize.english.units import (
    read_decade,
    read_number,
    read_ordinal,
    read_plural,
)
from vivace.text.normalize.english.web import read_web
from vivace.text.normalize.rules import MAX_TOKEN, LanguageRules, Rule, Token

_RULES: tuple[Rule, ...] = (
    read_tag,
    read_bounds,
    read_cross,
    read_sign,
    read_source,
    read_reference,
    read_math_marks,
    read_formula,
    read_address,
    read_abbreviation,
    read_ordinal_sign,
    read_angle,
    read_date,
    read_phone,
    read_duration,
    read_time,
    read_decimal_comma,
    read_money,
    read_fraction,
    read_decade,
    read_plural,
    read_ordinal,
    read_power,
    read_number,
    read_range,
    read_unit,
    read_code,
    read_web,
    read_capitals,
    read_stroke,
    read_compound,
)
_PLAIN_RULES: tuple[Rule, ...] = (
    read_abbreviation,
    read_date,
    read_unit,
    read_reference,
    read_cross,
)
_LOWER = r"[a-z]+(?:['’-][a-z]+)*"
_PLAIN_WORD = re.compile(rf"[A-Z]?{_LOWER}|A|I['’][a-z]+|")
_ENDED = r"[A-Z]?[a-z]+(?:['’][a-z]+)?"  # may have a full stop
_ENDED_WORD = re.compile(_ENDED)
# "I" is no numeral after a sign or a word in lower case.
_IN_RUN = (
    rf"(?!\S{{{MAX_TOKEN}}})(?:"
    rf"(?:{_LOWER}(?: I)?|[A-Z]{_LOWER}|(?<=[.,;!?] )I|A|I['’][a-z]+)[,;!?]?|{_ENDED}\.)(?!\S)"
)
_PLAIN_WORDS = re.compile(rf"{_IN_RUN}(?:\s{_IN_RUN}){{0,31}}")
_UNITS = LONE_UNITS | SPELLED_UNITS
_MAY_CHANGE = WITHOUT_STOP | NAMES | _UNITS | SMALL_NUMERALS  # plain words that a rule may change
_EXCEPTIONS = frozenset(
    (
        *(f"{word}{sign}" for word in _MAY_CHANGE for sign in ("", *",;!?.")),
        *(f"{form}." for word in WITH_STOP for form in (word, word.capitalize())),
    )
)
_SIGNS_OF_PROSE = frozenset(".,;:!?…\"“”'‘’()")


def _rules(token: Token) -> Sequence[Rule]:
    core = token.core
    if "." not in token.trail and "|" not in token.lead and _PLAIN_WORD.fullmatch(core):
        return _PLAIN_RULES if core else (read_sign, read_source)
    if _SIGNS_OF_PROSE.issuperset(token.lead + token.trail):
        if core == "I":
            return (read_capitals,)  # "World War I"
        if _ENDED_WORD.fullmatch(core):
            return _PLAIN_RULES
    return _RULES


RULES = LanguageRules(
    rules=_rules,
    plain_words=_PLAIN_WORDS,
    exceptions=_EXCEPTIONS,
    plain_signs=plain_signs,
    read_leftovers=read_leftovers,
)
