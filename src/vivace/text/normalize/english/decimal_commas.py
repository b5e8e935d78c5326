"""Numbers with a decimal comma: `€1.234,56`, `2.450,00 EUR`, `2,5 kg`, `12,5%`."""

from __future__ import annotations

import re
from dataclasses import replace

from vivace.text.normalize.english.money import read_money
from vivace.text.normalize.english.unit_names import unit_words
from vivace.text.normalize.english.units import read_number
from vivace.text.normalize.rules import Reading, Token, TokenReader, core_after

_WITH_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:\.\d{3})+,\d{1,2}(?![\d.,])")
_SHORT = re.compile(r"(\d{1,3},\d{1,2})(%|[A-Za-zµ°][A-Za-z°²³]{0,3})?")
_EXCHANGED = str.maketrans(".,", ",.")


def read_decimal_comma(reader: TokenReader, token: Token) -> Reading | None:
    """A number in which the comma can only be a decimal comma; `2,5` alone may be a list."""
    if "," not in token.core:
        return None
    if _WITH_THOUSANDS.search(token.core):
        core = _WITH_THOUSANDS.sub(lambda found: found[0].translate(_EXCHANGED), token.core)
    elif (found := _SHORT.fullmatch(token.core)) and _is_unit(found[2] or core_after(reader, 1)):
        core = token.core.translate(_EXCHANGED)
    else:
        return None
    english = replace(token, core=core)
    return read_money(reader, english) or read_number(reader, english)


def _is_unit(text: str) -> bool:
    return text == "%" or (text != "" and unit_words(text, "") is not None)
