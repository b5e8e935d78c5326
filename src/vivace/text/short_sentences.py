"""Joins very short sentences with commas, for a voice that loses words between them.

    "I. Am. Here. Now."  ->  "I, Am, Here, Now."

The embedded voice often skips, repeats or misreads a sentence of one word. A question keeps its
mark. The stage runs after normalization. Its result does not depend on the pieces.
"""

from __future__ import annotations

import re

from vivace.text.spans import join, substitute
from vivace.text.split import ABBREVIATIONS

_CLOSERS, _OPENERS = "\"'”’)\\]}»", "\"'“‘(\\[{«"
_STOP = re.compile(  # or a line break that ends an item
    rf"(?P<stops>[.!?…]+|(?=\n\n))(?P<closers>[{_CLOSERS}]*)(?P<gap>\s*)[{_OPENERS}]*(?P<next>.?)",
    re.DOTALL,
)
_LAST_STOPS = re.compile(rf"[.!?…]+(?=[{_CLOSERS}]*\s*\Z)")
# "J." of "J. Smith", and titles, which normalization keeps. "I." is a sentence.
_TITLES = ABBREVIATIONS["english"].replace(".", r"\.").replace(" ", "|")
_NO_END = re.compile(rf"(?<![\w'’])(?:[A-HJ-Z]|(?i:{_TITLES}))\Z")
_NUM_BEFORE = 8  # characters before a stop that show these


class ShortSentences:
    """Joins consecutive sentences shorter than `max_chars` with commas."""

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._begin()

    def _begin(self) -> None:
        self._text = ""  # of the current sentence, not yet returned
        self._before = ""  # end of the text that was returned
        self._held = ""  # a short sentence before it, with the gap after it
        self._is_long = False  # the beginning of the current sentence was returned

    def feed(self, piece: str) -> str:
        self._text += piece
        return self._read(is_final=False)

    def finish(self, piece: str = "") -> str:
        self._text += piece
        out = [self._read(is_final=True)]
        self._give_held(out, is_short=self._is_short(self._text))
        rest = join([*out, self._text])
        self._begin()
        return rest

    def _read(self, *, is_final: bool) -> str:
        out: list[str] = []
        place = 0  # where the search continues
        while stop := _STOP.search(self._text, place):
            if not stop["next"] and not is_final:
                break
            if not stop["gap"] and stop["next"]:  # "3.14"
                place = stop.end("stops")
            elif self._is_inside(stop):
                place = stop.end("gap")
            else:
                self._end_sentence(stop, out)
                place = 0
        certain = stop.start() if stop else len(self._text.rstrip("\n"))
        if self._is_long or certain >= self._max_chars:
            self._is_long = True
            self._give_held(out, is_short=False)
            self._give(self._text[:certain], out)
            self._text = self._text[certain:]
        return join(out) if out else ""

    def _is_inside(self, stop: re.Match[str]) -> bool:
        """Whether the full stop belongs to an initial or a title."""
        before = self._before if self._is_long else ""
        text = before + self._text[: stop.start()]
        return stop["stops"] == "." and _NO_END.search(text[-_NUM_BEFORE:]) is not None

    def _end_sentence(self, stop: re.Match[str], out: list[str]) -> None:
        end, start = stop.end("closers"), stop.end("gap")
        sentence, gap = self._text[:end], self._text[end:start]
        self._text = self._text[start:]
        is_short = self._is_short(sentence)
        self._give_held(out, is_short=is_short)
        is_question = "?" in stop["stops"]
        may_continue = not is_question and not gap.strip(" ") and stop["next"].isalnum()
        if is_short and may_continue:
            self._held = sentence + gap
        else:
            self._give(sentence + gap, out)
        self._is_long = False

    def _is_short(self, sentence: str) -> bool:
        has_words = any(map(str.isalnum, sentence))
        return has_words and not self._is_long and len(sentence.rstrip()) < self._max_chars

    def _give_held(self, out: list[str], *, is_short: bool) -> None:
        """Return the short sentence that was held, with a comma if another one follows."""
        held, self._held = self._held, ""
        self._give(substitute(_LAST_STOPS, ",", held) if is_short else held, out)

    def _give(self, text: str, out: list[str]) -> None:
        if text:
            self._before = text[-_NUM_BEFORE:]
            out.append(text)
