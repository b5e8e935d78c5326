"""Abbreviations with a full stop, and a few without."""

from __future__ import annotations

import re

from vivace.text.normalize.english.addresses import is_direction, read_street
from vivace.text.normalize.english.capitals import read_numeral, spell_letters
from vivace.text.normalize.english.numbers import read_digits, year
from vivace.text.normalize.english.references import NUMBERED, is_numeral, is_small_numeral
from vivace.text.normalize.english.tables import word_map, word_set
from vivace.text.normalize.rules import (
    ENDS,
    Reading,
    Token,
    TokenReader,
    begins_sentence,
    is_after_name,
    is_capitalised,
    next_in_line,
    word_before,
)

# Titles before a name.
_TITLES = word_map("titles")
# Abbreviations after a name.
_PLACES = word_map("places")
# Abbreviations anywhere; `_NEVER_LAST` lists those that never end a sentence.
_WORDS = word_map("abbreviations")
_BOOKS = word_map("bible")
_VERSE = re.compile(r"\d{1,3}:\d")
_IN_NAMES = word_set("in_names")
_NEVER_LAST = word_set("never_last")
# Abbreviations before a year: `c. 1450`.
_BEFORE_YEARS = word_map("before_year")
_BEFORE_TIMES = word_map("before_time")  # "dep. 08:25"
_TIME = re.compile(r"\d{1,2}[:.]\d\d")
_GLUED_YEAR = re.compile(r"(c|b|d|r)\.([12]\d{3})")  # "c.1890"
_GLUED_NUMBER = re.compile(r"([A-Za-z]{1,4})\.(\d{1,4}(?:[-–]\d{1,4})?)")  # "No.1", "pp.5-7"
_SHOTS = {"INT": "Interior", "EXT": "Exterior"}  # of a screenplay: "INT. KITCHEN - DAY"
_YEAR = re.compile(r"[1-9]\d{2,3}(?:$|[-–])")
_PLAIN = word_map("plain_abbreviations")
_KEYS = {key: name for key, name in word_map("keys").items() if key != "Del"}  # "Del Mar"
_DOTLESS = word_map("without_stop") | _KEYS
_STREETS = frozenset(("St", "Ave", "Blvd", "Rd", "Hwy", "Pkwy"))
WITHOUT_STOP = frozenset(
    (*_PLAIN, *_DOTLESS, *_STREETS, "Apt", "apt", "Dr", "Prof")
)  # read also without a full stop
# Words that may be abbreviations if a full stop follows, in lower case.
WITH_STOP = frozenset(
    word.lower()
    for word in (
        "A",
        "est",
        *_BEFORE_TIMES,
        *_TITLES,
        *_PLACES,
        *_WORDS,
        *_BOOKS,
        *_BEFORE_YEARS,
        *NUMBERED,
    )
)
_INITIALS = re.compile(r"((?:[A-Z][a-z]?\.|[a-z]\.)+)([A-Za-z]{1,2})((?:\.?['’]s)?)")
_BRACKETED = re.compile(rf"\((\d+)\)(?:[-–]\((\d+)\))?([{ENDS}\"]*)")
_OWNER = re.compile(r"([A-Z][a-z]+)\.(['’]s)")  # "Jr.'s"
_HYPHENED = re.compile(  # "U.S.-based", "non-U.S.", "D-N.Y."
    r"(?:[A-Za-z]+-)*(?:[A-Z][a-z]?\.|[a-z]\.)+[A-Za-z]{0,2}(?:-[A-Z]?[a-z]+)*"
    r"|(?:[A-Z]\.-)+[A-Z]"  # "J.-P. Roe"
)
_BEFORE_INITIALS = frozenset(("Mr", "Mrs", "Ms", *_TITLES))
_ENDS_ABBREVIATED = re.compile(r"[.-]\w$|\.[^-]*$")
_ONE_INITIAL = re.compile(r"[A-HJ-Z]")
_ORDINAL = re.compile(r"\d{1,3}(?:st|nd|rd|th)")
_COUNT = re.compile(r"\d[\d,]*")
_AFTER_NUMBERS = {"fl": "floor", "min": "minute", "pp": "pages"}  # after `34th` and `567`
_BEFORE_NAMES = frozenset(("by", "from", "with"))
_BEFORE_STREETS = frozenset(("at", "near", "of", "on", "onto", "to"))
_NOT_NAMES = word_set("not_before_initials")
_SPECIES = word_set("species")  # after an initial: "E. coli"
# Words that begin a sentence more often than they are part of a name.
_SENTENCE_STARTERS = word_set("sentence_starters")


def read_abbreviation(reader: TokenReader, token: Token) -> Reading | None:
    core = token.core
    if core in _PLAIN:
        return Reading(_PLAIN[core])
    if "." in core and (glued := _GLUED_NUMBER.fullmatch(core)) and glued[1].lower() in NUMBERED:
        words = _case(NUMBERED[glued[1].lower()], "" if reader.before else "A")
        return Reading(f"{words} {reader.read_alone(glued[2])}")
    if found := _GLUED_YEAR.fullmatch(core):
        return Reading(f"{_BEFORE_YEARS[found[1]]} {year(int(found[2]))}")
    if (owner := _OWNER.fullmatch(core)) and owner[1] in _PLACES:
        return Reading(_PLACES[owner[1]] + owner[2])
    if "-" in core and _HYPHENED.fullmatch(core):
        words = " ".join(_read_part(part) for part in core.split("-"))
        is_stop = token.trail.startswith(".") and _ENDS_ABBREVIATED.search(core)
        return Reading(
            words, trail=stop_after(reader, token.trail, 0, is_name=True) if is_stop else None
        )
    if not token.trail.startswith("."):
        return _read_dotless(reader, token)
    if (found := _INITIALS.fullmatch(core)) and core.lower() not in _WORDS:
        return Reading(_spell(found), trail=stop_after(reader, token.trail, 0, is_name=True))
    if core in _BOOKS and (verse := reader.token(1)) and _VERSE.match(verse.text):
        return Reading(_BOOKS[core], trail=token.trail[1:])
    if core in _TITLES or core in _PLACES:
        return _read_name_part(reader, token)
    lower = core.lower()
    if (counted := _AFTER_NUMBERS.get(lower)) and _is_after_number(reader, lower):
        return _with_stop(reader, counted, token)
    if lower in NUMBERED:
        return _read_numbered(reader, token)
    if lower in _BEFORE_TIMES and (following := reader.token(1)) is not None:
        is_time = token.trail == "." and _TIME.match(following.core) is not None
        return Reading(_BEFORE_TIMES[lower], trail="") if is_time else None
    if core in _BEFORE_YEARS and (following := reader.token(1)) is not None:
        is_year = token.trail == "." and _YEAR.match(following.core) is not None
        return Reading(_BEFORE_YEARS[core], trail="") if is_year else None
    if lower == "est":
        return _read_est(reader, token)
    if core in _SHOTS:
        return Reading(_SHOTS[core], trail=token.trail[1:]) if reader.before is None else None
    if core == "V" and (numeral := read_numeral(reader, token)) is not None:
        return numeral  # "Henry V."
    if lower in _WORDS and (core != "V" or is_after_name(reader)):
        words = _case(_WORDS[lower], core)
        if lower == "incl" and word_before(reader) in ("is", "not", "are"):
            return _with_stop(reader, "included", token)
        if lower in _NEVER_LAST:
            return Reading(words, trail=token.trail[1:])
        return _with_stop(reader, words, token)
    if _ONE_INITIAL.fullmatch(core):
        return _read_initial(reader, token)
    return None


def _read_numbered(reader: TokenReader, token: Token) -> Reading | None:
    """`vol. 3`, `No. 5`, `Eqs. (5)–(7)`."""
    following = reader.token(1)
    is_before = following is not None and (
        re.match(r"[\d#]|\(\d+\)|[A-Z]{1,4}-?\d", following.text)
        or is_small_numeral(following.core)
        or is_numeral(following.core)
    )
    words = _case(NUMBERED[token.core.lower()], "A" if begins_sentence(reader) else "")
    if is_before and following and (found := _BRACKETED.fullmatch(following.text)):
        numbers = " to ".join(map(read_digits, filter(None, found.groups()[:2])))
        return Reading(f"{words} {numbers}", 2, found[3])  # "Eq. (2)", "Eqs. (5)–(7)"
    return Reading(words, trail=token.trail[1:]) if is_before else None


def _is_after_number(reader: TokenReader, word: str) -> bool:
    """Whether the word counts a number: `34th Fl.`, `the 81st min.`, `567 pp.`"""
    before = reader.before
    pattern = _COUNT if word == "pp" else _ORDINAL
    return before is not None and before.is_open and pattern.fullmatch(before.core) is not None


def _read_est(reader: TokenReader, token: Token) -> Reading | None:
    """`Est. 1998`, `est. 5 hours`, `beat est. of $1`; `EST.` alone is a time zone."""
    following = reader.token(1)
    if following is not None and _YEAR.match(following.core):
        return Reading(_case("established", token.core), trail=token.trail[1:])
    if token.core == "EST":
        return None
    words = "estimate" if following is None or following.core == "of" else "estimated"
    return Reading(_case(words, token.core), trail=stop_after(reader, token.trail, 0))


def _read_dotless(reader: TokenReader, token: Token) -> Reading | None:
    core = token.core
    if core in _DOTLESS:
        return Reading(_DOTLESS[core])
    if found := _INITIALS.fullmatch(core):
        return Reading(_spell(found))
    if core in ("Apt", "apt"):
        following = reader.token(1)
        is_before = token.is_open and following is not None and following.core[:1].isdigit()
        return Reading(f"{core[0]}partment") if is_before else None
    if core in _STREETS:
        return read_street(reader, token)
    is_last = next_in_line(reader) is None or (reader.earlier or token).core[:1].isdigit()
    if core == "Dr" and is_last and is_after_name(reader):
        return Reading(_PLACES[core])  # "12 Lake Dr"
    if core in ("Dr", "Prof") and is_capitalised(next_in_line(reader)):
        return Reading(_TITLES[core])
    return None


def _spell(found: re.Match[str]) -> str:
    return spell_letters(found[1].replace(".", "") + found[2]) + found[3].lstrip(".")


def _read_part(part: str) -> str:
    """A part of a word with hyphens: `U.S.` of `U.S.-based`."""
    plain = part.rstrip(".")
    if "." not in part or (words := _WORDS.get(plain.lower())) is None:
        return spell_letters(part.replace(".", "")) if "." in part or len(part) == 1 else part
    return words


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
    """Whether a title follows a word that is not a name: `Visit St. Paul`, `Ask Dr. Wu`."""
    following, before, earlier = reader.token(1), reader.before, reader.earlier
    is_initial = following is not None and _ONE_INITIAL.fullmatch(following.core) is not None
    is_first = before is not None and (earlier is None or not earlier.is_open)
    is_numbered = before is not None and before.core[:1].isdigit()  # "45th St."
    is_address = earlier is not None and (earlier.core[:1].isdigit() or is_direction(earlier))
    is_street = is_numbered or is_address
    return (is_initial or is_capitalised(following)) and is_first and not is_street


def _with_stop(reader: TokenReader, words: str, token: Token) -> Reading:
    is_name = token.core in _IN_NAMES
    return Reading(words, trail=stop_after(reader, token.trail, 0, is_name=is_name))


def _read_initial(reader: TokenReader, token: Token) -> Reading | None:
    """`J. R. Tolkien`, `John F. Kennedy`, `E. coli`: remove the full stop."""
    before, following = reader.before, reader.token(1)
    if following is None or token.trail != "." or "\n" in following.space:
        return None
    is_next_initial = len(following.core) == 1 and following.core.isupper()
    is_last = before is not None and len(before.core) == 1 and before.core.isupper()
    is_middle = before is not None and (
        (before.core in _BEFORE_INITIALS and before.trail in ("", "."))
        or (before.is_open and is_capitalised(before) and before.core.lower() not in _NOT_NAMES)
    )
    if token.core in "NESW" and _ORDINAL.fullmatch(following.core):
        return Reading(token.core, trail="")  # "N. 5th St."
    if following.core in _SPECIES:
        return Reading(token.core, trail="")
    is_name = is_capitalised(following)
    is_first = before is not None and (
        before.core.lower() in _BEFORE_NAMES
        or (token.core in "NESW" and before.core in _BEFORE_STREETS)
        or begins_sentence(reader)
        or before.trail == ":"
    )
    is_first = is_first and following.core not in _SENTENCE_STARTERS
    is_initial = (is_next_initial and following.trail.startswith(".")) or (
        is_name and (is_last or is_middle or is_first or before is None)
    )
    return Reading(token.core, trail="") if is_initial else None


def stop_after(reader: TokenReader, trail: str, place: int, *, is_name: bool = False) -> str:
    """The signs after an abbreviation; the full stop stays only at the end of a sentence.

    A capital letter in the next word shows that end. After a name (`U.S. Army`) only a sentence
    starter shows it.
    """
    if trail[1:].strip("\"'”’)"):
        return trail[1:]
    following = reader.token(place + 1)
    if following is None or following.space.count("\n"):
        return trail
    if is_direction(following):  # "Park Ave. NW"
        return trail[1:]
    is_end = following.core in _SENTENCE_STARTERS if is_name else following.core[:1].isupper()
    return trail if is_end or following.lead[:1] in tuple('"“‘') else trail[1:]


def _case(words: str, like: str) -> str:
    return words[0].upper() + words[1:] if like[:1].isupper() else words
