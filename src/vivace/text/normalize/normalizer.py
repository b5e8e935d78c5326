"""Applies the rules of a language to a text in pieces.

A rule may look at the words after its own. The text is held back until these words are known, so
the result does not depend on the pieces.
"""

from __future__ import annotations

import re

from vivace.text.normalize.rules import LanguageRules, NeedsMore, Reading, Token, TokenReader
from vivace.text.spans import join, rewrite

_SPACES = re.compile(r"[^\S\n]{2,}")


class LiveNormalizer:
    """Holds back one word, and a few more that may belong to a number, date or abbreviation."""

    def __init__(self, rules: LanguageRules) -> None:
        self._rules = rules
        self._reader = TokenReader(self._read_alone)

    def feed(self, piece: str) -> str:
        self._reader.feed(piece)
        return self._read()

    def finish(self, piece: str = "") -> str:
        self._reader.feed(piece)
        self._reader.end()
        rest = self._read() + self._reader.take_rest()
        self._reader = TokenReader(self._read_alone)
        return rest

    def _read(self) -> str:
        words: list[str] = []
        reader = self._reader
        while True:
            if unchanged := reader.skip_unchanged(self._rules):
                words.append(rewrite(unchanged, self._rules.plain_signs(unchanged)))
            try:
                token = reader.token()
                if token is None:
                    return join(words)
                if token.is_apart:
                    reader.before = reader.earlier = None
                words.append(self._normalize(token))
            except NeedsMore:
                return join(words)

    def _normalize(self, token: Token) -> str:
        reader = self._reader
        reading = self._apply_rules(token)
        last = reader.token(reading.num_tokens - 1)
        assert last is not None
        trail = last.trail if reading.trail is None else reading.trail
        is_end = ")" in trail and reader.token(reading.num_tokens) is None
        words = self._rules.plain_signs(reading.words).strip()
        lead = self._lead(token.lead if reading.lead is None else reading.lead, words)
        text = f"{lead}{words}{self._trail(trail, is_end=is_end)}"
        if text := self._rules.read_leftovers(text).strip():
            reader.is_after_word = text[-1].isalnum()
        written = [one.written for one in reader.skip(reading.num_tokens)]
        return rewrite(join(written), self._join(token.space, lead, text), self._count_words)

    def _count_words(self, written: str) -> int:
        """How many words a written word becomes on its own."""
        return len(self._read_alone(str(written)).split())

    def _read_alone(self, text: str) -> str:
        return LiveNormalizer(self._rules).finish(text).strip()

    def _apply_rules(self, token: Token) -> Reading:
        readings = (rule(self._reader, token) for rule in self._rules.rules(token))
        return next((reading for reading in readings if reading is not None), Reading(token.core))

    def _join(self, space: str, lead: str, text: str) -> str:
        """The text after the white space before it."""
        text = _SPACES.sub(" ", text)
        if not text:
            return space if "\n" in space else ""
        if lead.startswith(","):
            return text if text[1:2] == " " else f", {text[1:].lstrip()}".rstrip()
        return space + text

    def _lead(self, lead: str, words: str) -> str:
        """Signs before a word; a bracket after a word becomes a comma."""
        is_after = self._reader.before is not None and self._reader.is_after_word
        comma = ", " if "(" in lead and is_after and words else ""
        return comma + self._rules.plain_signs(lead.replace("(", ""))

    def _trail(self, trail: str, *, is_end: bool) -> str:
        """Signs after a word; a bracket before more words becomes a comma."""
        if ")" not in trail:
            return self._rules.plain_signs(trail)
        rest = trail.replace(".).", ".").replace(")", "")
        return self._rules.plain_signs(rest) if rest or is_end else ","
