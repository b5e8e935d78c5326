"""Words in capitals: spelled (`FBI`), read as a word (`NASA`), or emphasized (`STOP`)."""

from __future__ import annotations

import re

from vivace.text.normalize.english.numbers import cardinal, ordinal, roman
from vivace.text.normalize.english.tables import word_map, word_set
from vivace.text.normalize.rules import (
    Reading,
    Token,
    TokenReader,
    begins_sentence,
    core_after,
    is_capitalised,
    word_before,
)

# Acronyms that are read as words.
_SPOKEN = word_set("spoken_acronyms")
# Acronyms that are spelled although they look like words.
_SPELLED = word_set("spelled_acronyms")
# Words of two and three letters that are more often emphasized than spelled.
_SMALL = word_set("short_words")
# Short words that are acronyms unless their neighbours are in capitals too.
_UNSURE = word_set("ambiguous_words")
_SAID = word_map("said")
_CONTRACTION = re.compile(r"([A-Z]+)(N?['’](?:T|S|RE|LL|VE|D|M))")
_CAPITALS = re.compile(r"([A-Z][A-Z'’&-]*[A-Z])((?:['’]?s)?)")
# Letters that begin no English word of up to five letters.
_ODD_START = re.compile(
    r"[^AEIOUY]{4}|[BCDFGJKMNPTVXZ][BCDFGJKMNPTVXZ]|[LRNM][BCDFGJKLPTSVXZ]|H[^AEIOUY]|S[BGRXZ]"
)
_FINE_START = re.compile("(?:PS|KN|GN|PN|PT|CZ|TS|MN)[AEIOUY]")
_FINE_END = re.compile(
    "[AEIOUY]|[AEIOUY](?:[^AEIOUYQ]|[LNR][DKLMNPSTGVZ]?[DKST]?|[SCFPXBLMNRTDGW]?[STHKZ]|NG|NGS|MP|GHT?"
    "|[TNR]CH|RTH|NTH|RST|[CFP]TS|SKS|LF|RF|WN|WL|CKS?|FF|GG|TT|SS|SM|LM|MB|SP|LVES?|GN|PSE|THS?)"
)
_OWNERS = ("'s", "’s")
_VOWEL = re.compile("[AEIOUY]")
_BEFORE_SMALL = word_set("before_small_numerals")
_BEFORE_NUMERALS = word_set("before_numerals") | _BEFORE_SMALL
_RULERS = word_set("rulers")


def spell_letters(letters: str) -> str:
    """`FBI` as `F B I`."""
    return " ".join(letters.upper())


def read_capitals(reader: TokenReader, token: Token) -> Reading | None:
    if (numeral := read_numeral(reader, token)) is not None:
        return numeral
    found = _CAPITALS.fullmatch(token.core)
    if found is None:
        return None
    word, ending = found[1], found[2]
    if "&" in word:
        return Reading(
            " and ".join(spell_letters(part) for part in word.split("&") if part) + ending
        )
    if contraction := _CONTRACTION.fullmatch(word):
        return Reading(_read_contraction(contraction, reader))
    if "-" in word:
        parts = re.sub("[A-Z]{2,}", lambda part: read_word(part[0], is_loud=True), word)
        return Reading(parts + ending)
    words = read_word(word, is_loud=is_loud(reader, token) or _is_verb(reader, word))
    return Reading(_join_plural(words, word, ending, reader))


def _read_contraction(found: re.Match[str], reader: TokenReader) -> str:
    """`DON'T` is an emphasized word, and `NASA'S` may be."""
    is_not = found[2].endswith("T")
    words = found[1].lower() if is_not else read_word(found[1], is_loud=True)
    words += found[2].lower()
    return words.capitalize() if begins_sentence(reader) and " " not in words else words


def _is_verb(reader: TokenReader, word: str) -> bool:
    """`I AM 5` and `AM I late`: "AM" beside "I" is no time of day."""
    return word == "AM" and (word_before(reader) == "i" or core_after(reader, 1) == "I")


def _join_plural(words: str, word: str, ending: str, reader: TokenReader) -> str:
    is_emphasized = words == word.lower()
    if is_emphasized and begins_sentence(reader):
        words = words.capitalize()
    return f"{words}'s" if ending == "s" and " " in words else words + ending


def read_word(word: str, *, is_loud: bool) -> str:
    """Write a word in capitals in lower case or as letters.

    `is_loud`: neighbouring words are in capitals too.
    """
    if len(word) == 1:
        return word.lower() if is_loud and word != "I" else word
    if word in _SMALL and (is_loud or word not in _UNSURE):
        return word.lower()
    if word in _SAID:
        return _SAID[word]
    if word in _SPOKEN:
        return word.capitalize()
    # A short word is spelled unless its neighbours are in capitals too.
    is_word = (is_loud or len(word) > 3) and word not in _SPELLED and is_pronounceable(word)
    return word.lower() if is_word else spell_letters(word)


def is_pronounceable(word: str) -> bool:
    """Whether a word looks like an English word; most words above five letters are."""
    if _VOWEL.search(word) is None:
        return False
    if len(word) > 5:
        return True
    if _ODD_START.match(word) and not _FINE_START.match(word):
        return False
    last_vowel = max(word.rfind(vowel) for vowel in "AEIOUY")
    return _FINE_END.fullmatch(word, last_vowel) is not None


def is_loud(reader: TokenReader, token: Token) -> bool:
    """Whether a neighbouring word is in capitals too and is no abbreviation."""
    before = reader.before
    if before is not None and _is_emphasized(before):
        return True
    if any(stop in token.trail for stop in ".!?"):
        return False
    following = reader.token(1)
    return following is not None and _is_emphasized(following)


def _is_emphasized(token: Token) -> bool:
    """Whether a token is a word in capitals, not an abbreviation."""
    word = token.core
    if not word.isalpha() or not word.isupper() or len(word) < 2 or word in _SPELLED | _SPOKEN:
        return word in _UNSURE and len(word) > 1
    return word in _SMALL or (len(word) > 3 and is_pronounceable(word))


def read_numeral(reader: TokenReader, token: Token) -> Reading | None:
    """`Henry VIII`, `World War II`; `I` only after a word such as `War`."""
    core = token.core[:-2] if token.core.endswith(_OWNERS) else token.core  # "Henry VIII's"
    value, ending = roman(core), token.core[len(core) :]
    before = reader.before
    if value is None:
        return None
    if value < 40 and _is_heading(reader, token):
        return Reading(cardinal(value).capitalize())
    if before is None or not before.is_open or core in ("C", "L"):
        return None
    is_name = before.core[:1].isupper() and len(before.core) > 2
    is_letter = len(core) == 1  # "Type X", but "Chapter X"
    words = _BEFORE_SMALL if core == "X" else _BEFORE_NUMERALS
    if before.core.lower() in words and (is_name or not is_letter):
        return Reading(cardinal(value) + ending)
    if before.core in _RULERS and (core == "V" or _is_reign(reader, token)):
        return Reading(f"the {ordinal(value)}{ending}")
    if not is_letter and len(before.core) > 3 and before.core.isupper() and value < 40:
        return Reading(cardinal(value) + ending)  # "SATA III"
    last = before.core.rpartition("-")[2]  # of "Eliot-Smith"
    if is_letter or value >= 40 or not (is_name and last[1:].islower()):
        return None
    return Reading(
        (f"the {ordinal(value)}" if before.core in _RULERS else cardinal(value)) + ending
    )


def _is_reign(reader: TokenReader, token: Token) -> bool:
    """Whether `I` follows a name as a number: `Queen Elizabeth I`, `George I of Greece`."""
    title = reader.earlier.core if reader.earlier is not None else ""
    is_titled = title in ("King", "Queen", "Pope", "Emperor", "Tsar", "Prince")
    is_last = token.trail.startswith((",", ")"))  # "Charles I, and Henry V"
    return token.core == "I" and (is_titled or is_last or core_after(reader, 1) == "of")


def _is_heading(reader: TokenReader, token: Token) -> bool:
    """Whether a numeral begins a heading: `II. Methods`."""
    is_first = reader.before is None or "\n" in token.space
    is_number = len(token.core) > 1 and token.trail == "."
    return is_first and is_number and is_capitalised(reader.token(1))
