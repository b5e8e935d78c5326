"""Packs sentences into utterances.

Three packers differ in how much text they wait for:

- `WordPacker` passes words on as they arrive and ends an utterance at the first sentence end
  after `max_chars`. First audio does not wait for the end of a sentence.
- `SentencePacker` makes every sentence an utterance as soon as the next sentence begins.
- `WholeTextPacker` waits for the end of the text and puts as many sentences into an utterance as
  `max_chars` allows.

The result does not depend on how the text was cut into pieces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from vivace.text.breaks import LINE_END_RUN, BlockEnd, find_blocks, skip_spaces
from vivace.text.options import ScriptOptions
from vivace.text.spans import join
from vivace.text.split import SentenceSplitter, goes_on, split_sentences

# Where an utterance may be cut inside a sentence, and from how many times `max_chars` on.
_FORCED_CUTS = (
    (2, re.compile(r"[,;:][\"'”’)\]»]?(?=\s)|[，、；：—]")),
    (3, re.compile(r"\S(?=\s)")),
    (4, re.compile(r".(?=[^\u200d\ufe0f\u0300-\u036f])", re.DOTALL)),
)
_OPEN_RUN = re.compile(rf"{LINE_END_RUN.pattern}\Z")
_UNLIMITED = 1 << 30
_SLICE = 256  # characters that `WordPacker` reads at a time; a cut re-reads at most these
_TAIL = 64  # characters that show whether a sentence has ended


@dataclass(frozen=True, slots=True)
class Cut:
    """The end of an utterance."""

    is_inside: bool = False  # the sentence continues in the next utterance
    is_paragraph: bool = False  # the next utterance begins another paragraph


def open_packer(options: ScriptOptions) -> WholeTextPacker | BlockPacker:
    """A stage that returns text and the cuts between utterances."""
    return WholeTextPacker(options) if options.packing == "whole" else BlockPacker(options)


def sentence_spans(text: str, sentences: Iterable[str], end: int = 0) -> Iterator[tuple[int, int]]:
    """Start and end of consecutive sentences in `text`; only white space lies between them."""
    for sentence in sentences:
        start = skip_spaces(text, end)
        end = start + len(sentence)
        yield start, end


class BlockPacker:
    """Ends an utterance after every paragraph and list item; packs each block separately.

    White space that begins with a line end is held until the next word.
    """

    def __init__(self, options: ScriptOptions) -> None:
        self._options = options
        self._held = ""
        self._packer = self._open()

    def _open(self) -> SentencePacker | WordPacker:
        packer = SentencePacker if self._options.packing == "sentences" else WordPacker
        return packer(self._options.max_chars)

    def feed(self, piece: str) -> list[str | Cut]:
        if self._options.paragraph_s is None:
            return self._packer.feed(piece)
        text, self._held = self._held + piece, ""
        if run := _OPEN_RUN.search(text):
            text, self._held = text[: run.start()], text[run.start() :]
        events: list[str | Cut] = []
        for start, end, kind in find_blocks(text, has_marks=self._options.plain_breaks):
            if kind is None:
                events += self._packer.feed(text[start:end])
            else:
                events += self._packer.finish(text[start:end])
                events.append(Cut(is_paragraph=kind == "paragraph"))
                self._packer = self._open()
        return events

    def finish(self, piece: str = "") -> list[str | Cut]:
        events = [*self.feed(piece), *self._packer.finish(self._held)]
        self._held = ""
        self._packer = self._open()
        return events


class SentencePacker:
    """Returns whole sentences with a cut after each; splits sentences longer than `max_chars`."""

    def __init__(self, max_chars: int | None) -> None:
        self._splitter = SentenceSplitter(max_chars or _UNLIMITED)
        self._text = ""  # after the last returned sentence

    def feed(self, piece: str) -> list[str | Cut]:
        self._text += piece
        return self._give(self._splitter.feed(piece))

    def finish(self, piece: str = "") -> list[str | Cut]:
        self._text += piece
        events = self._give(self._splitter.finish(piece))
        return [*events[:-1], Cut()] if events else []

    def _give(self, sentences: Sequence[str]) -> list[str | Cut]:
        events: list[str | Cut] = []
        end = 0
        for start, end in sentence_spans(self._text, sentences):
            sentence = self._text[start:end]
            gap = self._text[end : skip_spaces(self._text, end)]
            events += [sentence, Cut(goes_on(sentence, gap))]
        self._text = self._text[end:]
        return events


class WholeTextPacker:
    """Packs a complete text; `feed` returns nothing before `finish`.

    The first utterance of a text longer than `max_chars` is one sentence: first audio does not
    wait for more.
    """

    def __init__(self, options: ScriptOptions) -> None:
        self._options = options
        self._pieces: list[str] = []

    def feed(self, piece: str) -> list[str | Cut]:
        self._pieces.append(piece)
        return []

    def finish(self, piece: str = "") -> list[str | Cut]:
        text = join([*self._pieces, piece])
        self._pieces.clear()
        if self._options.max_chars is None:
            return [text] if text.strip() else []
        is_first = len(text) > self._options.max_chars
        events: list[str | Cut] = []
        for start, end, kind in self._blocks(text):
            utterances = self._pack(text[start:end], is_first=is_first)
            is_first = is_first and not utterances
            events += utterances
            if kind is not None:
                events.append(Cut(is_paragraph=kind == "paragraph"))
        return events

    def _blocks(self, text: str) -> Iterable[tuple[int, int, BlockEnd | None]]:
        if self._options.paragraph_s is None:
            return [(0, len(text), None)]
        return find_blocks(text, has_marks=self._options.plain_breaks)

    def _pack(self, text: str, *, is_first: bool) -> list[str | Cut]:
        """The utterances of one block. `is_first`: the first utterance is one sentence."""
        max_chars = self._options.max_chars or _UNLIMITED
        if len(text) <= max_chars and not is_first and not self._options.min_chars:
            return [text] if text.strip() else []
        events: list[str | Cut] = []
        start = end = 0  # of the current utterance
        num_sentences = 0
        for begin, stop in sentence_spans(text, split_sentences(text, max_chars)):
            is_alone = (is_first and num_sentences == 1) or end - start < self._options.min_chars
            if num_sentences and (is_alone or stop - start > max_chars):
                tail = text[max(0, end - _TAIL) : end]
                events += [text[start:end], Cut(goes_on(tail, text[end:begin]))]
                start = begin
            elif not num_sentences:
                start = begin
            end = stop
            num_sentences += 1
        return [*events, text[start:end]] if num_sentences else []


class WordPacker:
    """Passes text on and marks the cuts between utterances.

    A text of up to `max_chars` characters is one utterance. A longer text is cut at the first
    sentence end after `max_chars`, or inside a sentence that reaches twice that length. The
    packer holds back at most the end of one sentence.
    """

    def __init__(self, max_chars: int | None) -> None:
        self._max_chars = _UNLIMITED if max_chars is None else max_chars
        self._is_cutting = max_chars is not None
        self._begin("")

    def _begin(self, text: str) -> None:
        self._splitter = SentenceSplitter(_UNLIMITED)
        self._text = text  # of the utterance and after it
        self._end = 0  # of the last complete sentence
        self._given = 0  # characters already returned

    def feed(self, piece: str) -> list[str | Cut]:
        if not self._is_cutting:
            return [piece] if piece else []
        events: list[str | Cut] = []
        for start in range(0, len(piece), _SLICE):
            events += self._read(piece[start : start + _SLICE], is_final=False)
        return events

    def finish(self, piece: str = "") -> list[str | Cut]:
        return [*self.feed(piece), *self._read("", is_final=True)]

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
            end, next_start, is_inside = place
            events += [*self._give(end), Cut(is_inside)]
            self._begin(self._text[next_start:].lstrip())
            sentences = self._splitter.feed(self._text)

    def _find_cut(self, sentences: Sequence[str], is_final: bool) -> tuple[int, int, bool] | None:
        """Return the first certain cut and move past the sentences before that cut.

        A cut is the end of the utterance, the start of the next one, and whether the cut lies
        inside a sentence.
        """
        for start, end in sentence_spans(self._text, sentences, self._end):
            if self._end >= self._max_chars:
                return self._end, start, False
            if place := self._find_forced_cut(end):
                return place
            self._end = end
        if is_final:
            return None
        certain, begun = self._certain_end(is_final), self._begun()
        if begun >= certain:  # only white space, which may become the gap between utterances
            return None
        if self._end >= self._max_chars:
            return self._end, begun, False
        return self._find_forced_cut(certain)

    def _begun(self) -> int:
        """Start of the sentence that is not complete yet."""
        return skip_spaces(self._text, self._end)

    def _certain_end(self, is_final: bool) -> int:
        """End of the text that belongs to this utterance if no cut is found in it."""
        if is_final:
            return len(self._text)
        certain = len(self._text) - self._splitter.num_uncertain
        return self._end if self._begun() >= certain else certain

    def _give(self, end: int) -> list[str | Cut]:
        begin, self._given = self._given, max(self._given, end)
        return [self._text[begin:end]] if end > begin else []

    def _find_forced_cut(self, end: int) -> tuple[int, int, bool] | None:
        """The first good place before `end` in an utterance that has grown too long."""
        cuts = []
        for times, pattern in _FORCED_CUTS:
            lowest = max(self._given, times * self._max_chars)
            ends = (found.end() for found in pattern.finditer(self._text, max(0, lowest - 2)))
            cuts += [next((cut for cut in ends if cut >= lowest), end)]
        return (min(cuts), min(cuts), True) if min(cuts) < end else None
