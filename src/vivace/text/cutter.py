"""Splits live text into utterances."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vivace.text.breaks import LINE_END_RUN, BlockEnd, block_end
from vivace.text.markup import ScriptOptions
from vivace.text.split import SentenceSplitter, goes_on

# Where an utterance whose sentence does not end may be cut, at so many times its wanted length.
_FORCED_CUTS = (
    (2, re.compile(r"[,;:][\"'”’)\]»]?(?=\s)|[，、；：—]")),
    (3, re.compile(r"\S(?=\s)")),
    (4, re.compile(r".(?=[^\u200d\ufe0f\u0300-\u036f])", re.DOTALL)),
)
_SPACES = re.compile(r"\s*")
_OPEN_RUN = re.compile(rf"{LINE_END_RUN.pattern}\Z")
_ENDLESS = 1 << 30
_SLICE = 256  # characters read at a time, so that a cut goes back over no more than these


@dataclass(frozen=True, slots=True)
class Cut:
    """An utterance is over; what follows is another."""

    is_inside: bool = False  # a sentence, which goes on in the next utterance
    is_paragraph: bool = False  # the next utterance begins another paragraph


@dataclass(frozen=True, slots=True)
class _Place:
    """A cut in the text at hand."""

    end: int  # of the utterance
    next_start: int
    is_inside: bool = False


class BlockCutter:
    """Cuts at the ends of paragraphs and items; each is cut by itself, by sentence or by length.

    White space that begins with a line end is held until the next word.
    """

    def __init__(self, options: ScriptOptions) -> None:
        self._options = options
        self._held = ""
        self._cutter = self._open()

    def _open(self) -> SentenceCutter | Cutter:
        cutter = SentenceCutter if self._options.by_sentence else Cutter
        return cutter(self._options.max_chars)

    def feed(self, piece: str) -> list[str | Cut]:
        if self._options.paragraph_s is None:
            return self._cutter.feed(piece)
        text, self._held = self._held + piece, ""
        if run := _OPEN_RUN.search(text):
            text, self._held = text[: run.start()], run[0]
        events: list[str | Cut] = []
        start = 0
        for found in LINE_END_RUN.finditer(text):
            if kind := block_end(found[0], has_marks=self._options.plain_breaks):
                events += self._end_block(text[start : found.start()], kind)
                start = found.end()
        return events + self._cutter.feed(text[start:])

    def finish(self) -> list[str | Cut]:
        events = self._cutter.feed(self._held)
        self._held = ""
        return events + self._cutter.finish()

    def _end_block(self, text: str, kind: BlockEnd) -> list[str | Cut]:
        events = [*self._cutter.feed(text), *self._cutter.finish()]
        self._cutter = self._open()
        return [*events, Cut(is_paragraph=kind == "paragraph")]


class SentenceCutter:
    """Passes on whole sentences, with a cut after each; one longer than `max_chars` in parts.

    A sentence comes when the next one begins; the result does not depend on the pieces.
    """

    def __init__(self, max_chars: int | None) -> None:
        self._splitter = SentenceSplitter(max_chars or _ENDLESS)
        self._text = ""  # after the last sentence

    def feed(self, piece: str) -> list[str | Cut]:
        self._text += piece
        return self._give(self._splitter.feed(piece))

    def finish(self) -> list[str | Cut]:
        events = self._give(self._splitter.finish())
        return [*events[:-1], Cut()] if events else []

    def _give(self, sentences: list[str]) -> list[str | Cut]:
        events: list[str | Cut] = []
        end = 0
        for sentence in sentences:
            end = self._text.index(sentence, end) + len(sentence)
            gap = _SPACES.match(self._text, end)
            assert gap is not None
            events += [sentence, Cut(goes_on(sentence, gap[0]))]
        self._text = self._text[end:]
        return events


class Cutter:
    """Passes a text on and marks cuts between utterances.

    A text of up to `max_chars` characters is one utterance. A longer one is cut at the first
    sentence end after them, or inside a sentence that goes on for twice that. The result does not
    depend on the pieces; at most the end of one sentence is held.
    """

    def __init__(self, max_chars: int | None) -> None:
        self._max_chars = _ENDLESS if max_chars is None else max_chars
        self._is_cutting = max_chars is not None
        self._begin("")

    def _begin(self, text: str) -> None:
        self._splitter = SentenceSplitter(_ENDLESS)
        self._text = text  # of the utterance, and what follows it
        self._end = 0  # of its last whole sentence
        self._given = 0  # so much of it is out

    def feed(self, piece: str) -> list[str | Cut]:
        if not self._is_cutting:
            return [piece] if piece else []
        events: list[str | Cut] = []
        for start in range(0, len(piece), _SLICE):
            events += self._read(piece[start : start + _SLICE], is_final=False)
        return events

    def finish(self) -> list[str | Cut]:
        return self._read("", is_final=True)

    def _read(self, piece: str, *, is_final: bool) -> list[str | Cut]:
        self._text += piece
        events: list[str | Cut] = []
        sentences = self._splitter.feed(piece)
        while True:
            if is_final:
                sentences += self._splitter.finish()
            place = self._find_cut(sentences, is_final)
            if place is None:
                return events + self._give(self._certain_end(is_final))
            events += [*self._give(place.end), Cut(place.is_inside)]
            self._begin(self._text[place.next_start :].lstrip())
            sentences = self._splitter.feed(self._text)

    def _find_cut(self, sentences: list[str], is_final: bool) -> _Place | None:
        """The first cut that is certain; moves past the sentences before it."""
        for sentence in sentences:
            start = self._text.index(sentence, self._end)
            if self._end >= self._max_chars:
                return _Place(self._end, start)
            end = start + len(sentence)
            if place := self._find_forced_cut(end):
                return place
            self._end = end
        if is_final:
            return None
        certain, begun = self._certain_end(is_final), self._begun()
        if begun >= certain:  # only white space, which may become the gap between utterances
            return None
        if self._end >= self._max_chars:
            return _Place(self._end, begun)
        return self._find_forced_cut(certain)

    def _begun(self) -> int:
        """Where the sentence that is being written begins."""
        return len(self._text) - len(self._text[self._end :].lstrip())

    def _certain_end(self, is_final: bool) -> int:
        """The end of the text that belongs to this utterance if there is no cut in it."""
        if is_final:
            return len(self._text)
        certain = len(self._text) - self._splitter.num_uncertain
        return self._end if self._begun() >= certain else certain

    def _give(self, end: int) -> list[str | Cut]:
        begin, self._given = self._given, max(self._given, end)
        return [self._text[begin:end]] if end > begin else []

    def _find_forced_cut(self, end: int) -> _Place | None:
        """The first good place before `end` for an utterance that has grown too long."""
        cuts = []
        for times, pattern in _FORCED_CUTS:
            lowest = max(self._given, times * self._max_chars)
            ends = (found.end() for found in pattern.finditer(self._text, max(0, lowest - 2)))
            cuts += [next((cut for cut in ends if cut >= lowest), end)]
        return _Place(min(cuts), min(cuts), is_inside=True) if min(cuts) < end else None
