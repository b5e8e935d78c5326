"""The normalizer: applies the rules of this package to a whole or a live text.

A rule may look at the words after its own. Until those are written the text is held back, so the
result does not depend on the pieces.
"""

from __future__ import annotations

import re

from vivace.text.normalize.abbreviations import WITHOUT_STOP, read_abbreviation
from vivace.text.normalize.capitals import read_capitals
from vivace.text.normalize.codes import read_code, read_compound
from vivace.text.normalize.dates import NAMES, read_date
from vivace.text.normalize.money import read_money
from vivace.text.normalize.phones import read_phone
from vivace.text.normalize.ranges import read_fraction, read_range
from vivace.text.normalize.reading import Reading, Rule
from vivace.text.normalize.signs import plain, read_leftovers, read_sign, read_stroke, read_tag
from vivace.text.normalize.times import read_time
from vivace.text.normalize.tokens import NeedsMore, Token, TokenReader
from vivace.text.normalize.units import read_decade, read_number, read_ordinal
from vivace.text.normalize.web import read_web
from vivace.text.trace import Trace

_RULES: tuple[Rule, ...] = (
    read_tag,
    read_sign,
    read_abbreviation,
    read_date,
    read_phone,
    read_time,
    read_money,
    read_fraction,
    read_decade,
    read_ordinal,
    read_number,
    read_range,
    read_code,
    read_web,
    read_capitals,
    read_stroke,
    read_compound,
)
_PLAIN_WORD = re.compile(r"[A-Z]?[a-z]+(?:['-][a-z]+)*|A|I'[a-z]+|")
_NOT_SO_PLAIN = WITHOUT_STOP | NAMES  # words that may be read as something else
_PLAIN_TRAILS = ("", ",", ";", "!", "?")
_SPACES = re.compile(r"[^\S\n]{2,}")


class LiveNormalizer:
    """Normalizes a text in pieces.

    Holds back one word, and a few more where they may belong to a number, date or abbreviation.
    """

    def __init__(self, trace: Trace | None = None) -> None:
        self._reader = TokenReader()
        self._trace = trace

    def feed(self, piece: str) -> str:
        """The words that have become certain."""
        self._reader.feed(piece)
        return self._read()

    def finish(self) -> str:
        """The rest; the next piece begins another text."""
        self._reader.end()
        rest = self._read() + self._reader.take_rest()
        self._reader = TokenReader()
        return rest

    def _read(self) -> str:
        said: list[str] = []
        reader = self._reader
        while True:
            try:
                token = reader.token()
                if token is None:
                    return "".join(said)
                if token.is_apart:
                    reader.before = reader.earlier = None
                said.append(self._say(token))
            except NeedsMore:
                return "".join(said)

    def _say(self, token: Token) -> str:
        reader = self._reader
        if _is_as_written(token):
            reader.skip(1)
            said = token.space + token.text
            if self._trace is not None:
                self._trace.say(said, said)
            return said
        reading = _read_token(reader, token)
        last = reader.token(reading.num_tokens - 1)
        assert last is not None
        trail = last.trail if reading.trail is None else reading.trail
        is_end = ")" in trail and reader.token(reading.num_tokens) is None
        words = plain(reading.words)
        lead = _lead(token.lead if reading.lead is None else reading.lead, reader, words)
        trail = _trail(trail, is_end=is_end)
        written = reader.skip(reading.num_tokens)
        said = _join(token.space, lead, f"{lead}{words}{trail}")
        if self._trace is not None:
            self._trace.say("".join(one.space + one.text for one in written), said)
        return said


def _is_as_written(token: Token) -> bool:
    """Whether no rule changes it: most words."""
    return (
        not token.lead
        and token.trail in _PLAIN_TRAILS
        and token.core != ""
        and token.core not in _NOT_SO_PLAIN
        and _PLAIN_WORD.fullmatch(token.core) is not None
    )


def _join(space: str, lead: str, text: str) -> str:
    """What is said, after the white space before it."""
    said = _SPACES.sub(" ", read_leftovers(text).strip())
    if not said:
        return space if "\n" in space else ""
    if lead.startswith(","):
        return said if said[1:2] == " " else f", {said[1:].lstrip()}"
    return space + said


def _read_token(reader: TokenReader, token: Token) -> Reading:
    if _PLAIN_WORD.fullmatch(token.core) and "." not in token.trail:
        rules: tuple[Rule, ...] = (read_abbreviation, read_date) if token.core else (read_sign,)
    else:
        rules = _RULES
    readings = (rule(reader, token) for rule in rules)
    return next((reading for reading in readings if reading is not None), Reading(token.core))


def _lead(lead: str, reader: TokenReader, words: str) -> str:
    """Signs before a word; a bracket is a comma after a word."""
    before = reader.before
    is_after = before is not None and before.is_open and before.core != ""
    comma = ", " if "(" in lead and is_after and words else ""
    return comma + plain(lead.replace("(", ""))


def _trail(trail: str, *, is_end: bool) -> str:
    """Signs after a word; a bracket is a comma before more words."""
    if ")" not in trail:
        return plain(trail)
    rest = trail.replace(")", "")
    return plain(rest) if rest or is_end else ","
