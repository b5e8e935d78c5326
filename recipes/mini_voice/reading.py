"""Converts written lines to the plain text that the teachers read.

The talker learns from the written text, with line breaks, quotes and ellipses. The teachers get the
plain text of the front end, so both texts have the same speech. Spellings that the teachers'
dictionary reads wrongly (hibari 0.2.1) are changed as well:

- Quotation marks keep a word from being found: "yes" ends in a z and "this" begins like "thin".
- "no." at the end of a sentence is read as "number".
- The letter A is read as the article: "plan A", "U S A".
- "Shh" is spelled letter by letter, "ugh" ends in a breath, and "hahaha" has the stress of a word.
  They are given as phonemes.
"""

from __future__ import annotations

import re

from vivace.text.breaks import BreakReader
from vivace.text.plain import PlainRules, PlainText

LETTER_NAMES = {"A": "eh"}  # spellings of letters that are read correctly
RULES = PlainRules(drops_ellipsis=True, drops_quotes=True)
_NO = re.compile(r"\bno\.(?!\s*\d)")
_BEFORE_LETTER = "plan|grade|vitamin|type|letter|group|class|gate|seat|option|section|team|part|the"
_LETTER_A = re.compile(
    rf"\bA(?= [A-Z]\b)|(?<=\b[A-Z] )A\b(?!\.)|\b((?i:{_BEFORE_LETTER})) A\b(?!['.]| [A-Z][a-z])"
)
_SOUNDS = {"ugh": "ˈʌɡ", "shh": "ʃʃʃ", "shhh": "ʃʃʃʃ", "hahaha": "hˈɑ hɑ hɑ"}
_SOUND = re.compile(rf"\b(?i:{'|'.join(sorted(_SOUNDS, key=len, reverse=True))})\b")


def for_teacher(text: str) -> str:
    """The plain text of one line in spellings that the teachers read correctly."""
    breaks, plain = BreakReader(), PlainText(RULES)
    marked = breaks.feed(text) + breaks.finish()
    return respelled(plain.feed(marked) + plain.finish())


def respelled(text: str) -> str:
    text = _NO.sub("know.", text)
    name = LETTER_NAMES["A"]
    text = _LETTER_A.sub(lambda found: f"{found[1]} {name}" if found[1] else name, text)
    return _SOUND.sub(lambda found: f"[{found[0]}](/{_SOUNDS[found[0].lower()]}/)", text)
