"""Abbreviations with a full stop, and a few without."""

from __future__ import annotations

import re

from vivace.text.normalize.capitals import spell_letters
from vivace.text.normalize.lists import word_set
from vivace.text.normalize.reading import Reading, begins_sentence, is_capitalised, stop_after
from vivace.text.normalize.tokens import Token, TokenReader

# Before a name.
_TITLES = {
    "Dr": "Doctor", "Prof": "Professor", "Rev": "Reverend",
    "Gen": "General", "Col": "Colonel", "Lt": "Lieutenant", "Sgt": "Sergeant", "Capt": "Captain",
    "Cpt": "Captain", "Maj": "Major", "Adm": "Admiral", "Sen": "Senator", "Rep": "Representative",
    "Gov": "Governor", "Pres": "President", "Hon": "Honorable", "Messrs": "Messers",
    "St": "Saint", "Mt": "Mount", "Ft": "Fort", "Fr": "Father", "Sr": "Senior",
}  # fmt: skip
# After a name.
_PLACES = {
    "St": "Street", "Dr": "Drive", "Ave": "Avenue", "Blvd": "Boulevard", "Rd": "Road",
    "Ln": "Lane", "Hwy": "Highway", "Pkwy": "Parkway", "Sq": "Square", "Ct": "Court",
    "Jr": "Junior", "Sr": "Senior", "Inc": "Incorporated", "Ltd": "Limited", "Co": "Company",
    "Corp": "Corporation", "Bros": "Brothers", "Mts": "Mountains", "Univ": "University",
}  # fmt: skip
# Anywhere; those that never end a sentence lose their full stop.
_WORDS = {
    "vs": "versus", "v": "versus", "e.g": "for example", "i.e": "that is",
    "approx": "approximately",
    "etc": "et cetera", "cf": "compare", "viz": "namely", "ca": "circa", "dept": "department",
    "est": "established", "max": "maximum", "min": "minimum", "avg": "average", "tel": "telephone",
    "ext": "extension", "misc": "miscellaneous", "govt": "government", "asst": "assistant",
    "assn": "association", "et al": "et al", "incl": "including", "esp": "especially",
    "temp": "temperature", "qty": "quantity", "ed": "edition", "apt": "apartment",
    "mfg": "manufacturing",
    "bldg": "building", "intl": "international", "natl": "national", "a.k.a": "A K A",
}  # fmt: skip
_IN_NAMES = frozenset(("Jr", "Sr", "Inc", "Co", "Ltd", "Corp", "Bros"))
_NEVER_LAST = frozenset(("vs", "v", "e.g", "i.e", "approx", "cf", "viz", "ca", "incl", "esp"))
_NEEDS_DOT = frozenset(
    ("v", "ca", "est", "max", "min", "ext", "temp", "ed", "apt", "misc", "tel", "cf")
)
# Before a number.
_NUMBERED = {
    "no": "number", "nos": "numbers", "p": "page", "pp": "pages", "fig": "figure",
    "figs": "figures", "vol": "volume", "ch": "chapter", "sec": "section", "art": "article",
    "eq": "equation", "ref": "reference",
}  # fmt: skip
_PLAIN = {
    "w/": "with", "w/o": "without", "b/c": "because", "a/c": "A C", "n/a": "N A", "N/A": "N A",
    "c/o": "care of",
    "id": "I D", "Id": "I D", "w/out": "without", "and/or": "and or", "24/7": "twenty-four seven",
}  # fmt: skip
_DOTLESS = {"vs": "versus", "approx": "approximately", "dept": "department", "govt": "government"}
_INITIALS = re.compile(r"((?:[A-Z][a-z]?\.|[a-z]\.)+)([A-Za-z]{1,2})((?:['’]s)?)")
_BEFORE_INITIALS = frozenset(("Mr", "Mrs", "Ms", *_TITLES))
_ONE_INITIAL = re.compile(r"[A-HJ-Z]")
_NOT_NAMES = word_set(
    "plan vitamin group type class option exhibit appendix section part team grade hepatitis "
    "schedule gate row block terminal"
)


def read_abbreviation(reader: TokenReader) -> Reading | None:
    token = reader.token()
    assert token is not None
    core = token.core
    if core in _PLAIN:
        return Reading(_PLAIN[core])
    if not token.trail.startswith("."):
        return _read_dotless(reader, token)
    if _INITIALS.fullmatch(core) and core.lower() not in _WORDS:
        return Reading(_spell(core), trail=stop_after(reader, token.trail, 0, is_name=True))
    if core in _TITLES or core in _PLACES:
        return _read_name_part(reader, token)
    lower = core.lower()
    if lower in _NUMBERED:
        following = reader.token(1)
        is_before = following is not None and re.match(r"[\d#]", following.text)
        words = _NUMBERED[lower].capitalize() if begins_sentence(reader) else _NUMBERED[lower]
        return Reading(words, trail=token.trail[1:]) if is_before else None
    if lower in _WORDS:
        words = _case(_WORDS[lower], core)
        if lower in _NEVER_LAST:
            return Reading(words, trail=token.trail[1:])
        return _with_stop(reader, words, token)
    if _ONE_INITIAL.fullmatch(core):
        return _read_initial(reader, token)
    return None


def _read_dotless(reader: TokenReader, token: Token) -> Reading | None:
    core = token.core
    if core in _DOTLESS:
        return Reading(_DOTLESS[core])
    if found := _INITIALS.fullmatch(core):
        return Reading(spell_letters(found[1].replace(".", "") + found[2]) + found[3])
    is_title = core in ("Dr", "Prof") and token.is_open
    if is_title and is_capitalised(reader.token(1)):
        return Reading(_TITLES[core])
    return None


def _spell(core: str) -> str:
    found = _INITIALS.fullmatch(core)
    assert found is not None
    return spell_letters(found[1].replace(".", "") + found[2]) + found[3]


def _read_name_part(reader: TokenReader, token: Token) -> Reading | None:
    """`Dr. Smith` or `Elm Dr.`, `St. Paul` or `Main St.`."""
    before, following = reader.before, reader.token(1)
    is_after = (
        before is not None
        and before.is_open
        and (is_capitalised(before) or before.core[:1].isdigit())
    )
    if token.core in _PLACES and is_after and not (token.core in ("St", "Dr") and _leads(reader)):
        return _with_stop(reader, _PLACES[token.core], token)
    if token.core in _TITLES and following is not None and token.trail == ".":
        return Reading(_TITLES[token.core], trail="")
    if token.core in _PLACES:
        return _with_stop(reader, _PLACES[token.core], token)
    return None


def _leads(reader: TokenReader) -> bool:
    """Whether a title stands after a word that is no name: `Visit St. Paul`, `Ask Dr. Wu`."""
    following, before, earlier = reader.token(1), reader.before, reader.earlier
    is_initial = following is not None and _ONE_INITIAL.fullmatch(following.core) is not None
    is_first = before is not None and (earlier is None or not earlier.is_open)
    is_numbered = earlier is not None and earlier.core[:1].isdigit()
    return (is_initial or is_capitalised(following)) and is_first and not is_numbered


def _with_stop(reader: TokenReader, words: str, token: Token) -> Reading:
    is_name = token.core in _IN_NAMES
    return Reading(words, trail=stop_after(reader, token.trail, 0, is_name=is_name))


def _read_initial(reader: TokenReader, token: Token) -> Reading | None:
    """`J. R. Tolkien`, `John F. Kennedy`: the full stop goes."""
    before, following = reader.before, reader.token(1)
    if following is None or token.trail != "." or "\n" in following.space:
        return None
    is_next_initial = len(following.core) == 1 and following.core.isupper()
    is_last = before is not None and len(before.core) == 1 and before.core.isupper()
    is_middle = before is not None and (
        (before.core in _BEFORE_INITIALS and before.trail in ("", "."))
        or (before.is_open and is_capitalised(before) and before.core.lower() not in _NOT_NAMES)
    )
    is_name = is_capitalised(following)
    if (is_next_initial and following.trail.startswith(".")) or (
        is_name and (is_last or is_middle)
    ):
        return Reading(token.core, trail="")
    if is_name and before is None:
        return Reading(token.core, trail="")
    return None


def _case(words: str, like: str) -> str:
    return words[0].upper() + words[1:] if like[:1].isupper() else words
