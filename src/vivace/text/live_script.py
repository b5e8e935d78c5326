"""A text that is still being written, as a row of utterances and pauses.

Words go on as they come: what is held back is only what later text may still turn into something
else, such as half a pause mark or a full stop that may end an utterance.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vivace.text.live_clean import LiveCleaner
from vivace.text.script import Pause, parse_pauses
from vivace.text.split import SentenceSplitter

_OPEN_MARK = re.compile(r"\[(?:p(?:a(?:u(?:s(?:e(?:\b[^\[\]\n]{0,40})?)?)?)?)?)?\Z", re.IGNORECASE)
# Where an utterance whose sentence does not end may be cut, at so many times its wanted length.
_FORCED_CUTS = (
    (2, re.compile(r"[,;:][\"'”’)\]»]?(?=\s)|[，、；：—]")),
    (3, re.compile(r"\S(?=\s)")),
    (4, re.compile(r".(?=[^\u200d\ufe0f\u0300-\u036f])", re.DOTALL)),
)
_ENDLESS = 1 << 30


@dataclass(frozen=True, slots=True)
class Cut:
    """An utterance is over; what follows is another."""


Event = str | Pause | Cut


class LiveScript:
    """Pieces of a text in; what of it may be said, pauses, and cuts between utterances out.

    A text of up to `max_chars` characters is one utterance, letter for letter. A longer one is cut
    at the first sentence end after them, and inside a sentence only if it goes on for twice that.
    """

    def __init__(self, max_chars: int | None, *, clean: bool = False) -> None:
        self._max_chars = max_chars
        self._cleaner = LiveCleaner() if clean else None
        self._held = ""  # what may be the beginning of a pause mark
        self._cutter = _Cutter(max_chars)

    def feed(self, piece: str) -> list[Event]:
        """What has become certain; a malformed pause is a RequestError."""
        return self._read(self._cleaner.feed(piece) if self._cleaner else piece, is_final=False)

    def finish(self) -> list[Event]:
        """The rest."""
        return self._read(self._cleaner.finish() if self._cleaner else "", is_final=True)

    def _read(self, piece: str, *, is_final: bool) -> list[Event]:
        text, self._held = self._held + piece, ""
        if not is_final and (mark := _OPEN_MARK.search(text)):
            text, self._held = text[: mark.start()], mark[0]
        found: list[Event] = []
        for part in parse_pauses(text):
            if isinstance(part, Pause):
                found += [*self._cutter.finish(), part]
                self._cutter = _Cutter(self._max_chars)
            else:
                found += self._cutter.feed(part)
        return found + (self._cutter.finish() if is_final else [])


class _Cutter:
    """Finds the ends of utterances in text without pauses."""

    def __init__(self, max_chars: int | None) -> None:
        self._max_chars = max_chars
        self._begin("")

    def _begin(self, text: str) -> None:
        self._splitter = SentenceSplitter(_ENDLESS)
        self._text = text  # of the utterance, and what follows it
        self._end = 0  # of its last whole sentence
        self._given = 0  # so much of it is out

    def feed(self, piece: str) -> list[Event]:
        if self._max_chars is None:
            return [piece] if piece else []
        self._text += piece
        return self._advance(self._splitter.feed(piece), is_final=False)

    def finish(self) -> list[Event]:
        return self._advance(self._splitter.finish(), is_final=True)

    def _advance(self, sentences: list[str], *, is_final: bool) -> list[Event]:
        for sentence in sentences:
            start = self._text.index(sentence, self._end)
            if self._is_full():
                return self._cut(self._end, start, is_final)
            end = start + len(sentence)
            if cut := self._find_forced_cut(end):
                return self._cut(cut, cut, is_final)
            self._end = end
        certain = len(self._text) - (0 if is_final else self._splitter.num_uncertain)
        begun = len(self._text) - len(self._text[self._end :].lstrip())
        if is_final:
            return self._give(certain)
        if begun >= certain:  # white space alone, which may come to lie between utterances
            return self._give(self._end)
        if self._is_full():
            return self._cut(self._end, begun, is_final)
        if cut := self._find_forced_cut(certain):
            return self._cut(cut, cut, is_final)
        return self._give(certain)

    def _is_full(self) -> bool:
        return self._max_chars is not None and self._end >= self._max_chars

    def _give(self, end: int) -> list[Event]:
        begin, self._given = self._given, max(self._given, end)
        return [self._text[begin:end]] if end > begin else []

    def _cut(self, end: int, next_start: int, is_final: bool) -> list[Event]:
        """End the utterance and read on in the next."""
        given = self._give(end)
        self._begin(self._text[next_start:].lstrip())
        sentences = self._splitter.feed(self._text)
        if is_final:
            sentences += self._splitter.finish()
        return [*given, Cut(), *self._advance(sentences, is_final=is_final)]

    def _find_forced_cut(self, end: int) -> int | None:
        """The first good place before `end` for an utterance that has grown too long."""
        if self._max_chars is None:
            return None
        cuts = []
        for times, pattern in _FORCED_CUTS:
            lowest = max(self._given, times * self._max_chars)
            ends = (found.end() for found in pattern.finditer(self._text, max(0, lowest - 2)))
            cuts += [next((cut for cut in ends if cut >= lowest), end)]
        return min(cuts) if min(cuts) < end else None
