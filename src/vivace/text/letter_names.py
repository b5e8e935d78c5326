"""Respells letters in spelled words, such as "A I", for a voice that misreads their names.

Runs after normalization. A letter is respelled if another single letter stands beside it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from vivace.text.spans import join, rewrite

_SENTENCE_ENDS = ".!?"
_LETTER = r"([A-Z])(?<![\w'’.-].)"  # no word or abbreviation before
_END = r"(?:['’]s)?(?![\w'’])"
_SPELLED = re.compile(
    rf"{_LETTER}(?= [A-Z]{_END})"  # "A" of "A I"
    rf"|[A-Z](?:(?<=\A[A-Z] .)|(?<=[^\w'’.-][A-Z] .))(?={_END})"  # "A" of "M A"
)
_OPEN = re.compile(rf"{_LETTER}(?:['’]s?| (?:[A-Z](?:['’]s?)?)?)?\Z")
_CONTEXT = 3  # characters before a letter that decide


class LetterNames:
    """Replaces letters by `names`, for a text in pieces."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._held = self._before = ""
        self._begins_sentence = True

    def feed(self, piece: str) -> str:
        text = self._before + self._held + piece
        held = _OPEN.search(text, len(self._before))
        while held and held[1] not in self._names:
            held = _OPEN.search(text, held.start() + 1)
        return self._read(text, held.start() if held else len(text))

    def finish(self, piece: str = "") -> str:
        text = self._before + self._held + piece
        rest = self._read(text, len(text))
        self._before, self._begins_sentence = "", True
        return rest

    def _read(self, text: str, end: int) -> str:
        out: list[str] = []
        place = len(self._before)
        for found in _SPELLED.finditer(text, place):
            if found.start() >= end:
                break
            if found[0] not in self._names:
                continue
            self._give(text[place : found.start()], None, out)
            self._give(text[found.start() : found.end()], self._names[found[0]], out)
            place = found.end()
        self._give(text[place:end], None, out)
        self._held, self._before = text[end:], text[max(0, end - _CONTEXT) : end]
        return join(out)

    def _give(self, text: str, name: str | None, out: list[str]) -> None:
        if name is not None and self._begins_sentence:
            name = name.capitalize()
        if text.strip():
            self._begins_sentence = text.rstrip()[-1] in _SENTENCE_ENDS
        out.append(text if name is None else rewrite(text, name))
