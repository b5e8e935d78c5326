"""Turns a text into utterances, pauses and cuts, stage by stage.

    tidy -> emoji -> TeX -> markdown -> pauses -> emoji -> line breaks -> lexicon -> normalize
    -> short sentences -> pack -> plain

Every stage receives text in pieces. A stage holds back what later text may still change: half a
mark, a number, a full stop that may end an utterance. The result does not depend on how the text
was cut into pieces: a known text is a live text that arrives in one piece.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Protocol

from vivace.errors import RequestError, TextTooLongError
from vivace.text.breaks import BreakReader
from vivace.text.cleaner import MarkdownCleaner
from vivace.text.emoji import EmojiDropper
from vivace.text.letter_names import LetterNames
from vivace.text.markup import LINE_SEPARATOR
from vivace.text.normalize import open_normalizer
from vivace.text.options import ScriptOptions
from vivace.text.packing import Cut, open_packer
from vivace.text.pauses import OPEN_MARK, Pause, parse_pauses
from vivace.text.plain import PlainText
from vivace.text.respell import Respeller
from vivace.text.short_sentences import ShortSentences
from vivace.text.spans import SpannedText
from vivace.text.split import ends_sentence
from vivace.text.tex import TexReader
from vivace.text.tidy import Tidier
from vivace.text.written_words import WrittenWords

Event = str | Pause | Cut
MAX_TEXT_CHARS = 1_000_000  # of a known text: a long book
MAX_TAIL = 256  # characters that show whether a sentence has ended
_PLAIN = re.compile(r"[ -Z\\-~]+")  # ASCII without control characters and without marks


class Stage(Protocol):
    """One step that rewrites a text in pieces."""

    def feed(self, piece: str) -> str:
        """Return the text that later pieces cannot change."""

    def finish(self, piece: str = "") -> str:
        """Return the rest with its last piece. The next piece begins another text."""


def feed_stages(stages: Sequence[Stage], text: str) -> str:
    for stage in stages:
        text = stage.feed(text)
    return text


def finish_stages(stages: Sequence[Stage], piece: str) -> str:
    for stage in stages:
        piece = stage.finish(piece)
    return piece


def is_one_utterance(text: str, options: ScriptOptions) -> bool:
    """Whether a known text is certainly one utterance that no stage changes.

    True for most short texts of a checkpoint that reads its text unchanged.
    """
    rewrites = options.clean or options.normalize or options.plain_breaks
    rewrites = rewrites or bool(options.lexicon or options.letter_names)
    is_short = options.max_chars is None or len(text) <= options.max_chars
    if rewrites or not is_short or options.min_chars or options.packing != "whole":
        return False
    is_plain = _PLAIN.fullmatch(text) is not None and "  " not in text
    return is_plain and options.is_speakable(text)


class TextPipeline:
    """All stages for one text. `error` describes the first part that was left out.

    With `words`, all texts of the events are `SpannedText`; `words` collects the written words.
    """

    def __init__(self, options: ScriptOptions, words: WrittenWords | None = None) -> None:
        self._tidier = Tidier()
        self._before_pauses: list[Stage] = [self._tidier]
        self._tex: TexReader | None = None
        self._cleaner: MarkdownCleaner | None = None
        if options.clean:
            item_end = LINE_SEPARATOR if options.plain_breaks else "\n\n"
            self._tex, self._cleaner = TexReader(), MarkdownCleaner(item_end=item_end)
            droppers = [] if options.keep_emoji else [EmojiDropper()]
            self._before_pauses += [*droppers, self._tex, self._cleaner]
        self._held = ""  # may be the beginning of a pause mark
        self._tail = ""  # end of the text so far
        self._errors: list[RequestError] = []
        self._stages = list(_open_stages(options, words))
        self._packer = open_packer(options)
        self._plain = PlainText(options.plain) if options.plain_breaks else None
        self._is_speakable = options.is_speakable
        self._keeps_signs = options.packing != "words"  # a text of the packer is an utterance
        self._has_spans, self._num_chars = words is not None, 0

    @property
    def error(self) -> RequestError | None:
        return next(iter(self._errors), self._tidier.error)

    def feed(self, piece: str) -> list[Event]:
        """Return the events that later pieces cannot change."""
        self._tail = (self._tail + piece)[-MAX_TAIL:]
        return self._read(feed_stages(self._before_pauses, self._with_spans(piece)))

    def _with_spans(self, piece: str) -> str:
        if not self._has_spans:
            return piece
        start, self._num_chars = self._num_chars, self._num_chars + len(piece)
        return SpannedText.read(piece, start)

    def settle(self) -> list[Event]:
        """Return the last sentence if it has certainly ended, without waiting for more text."""
        if self._held or not ends_sentence(self._tail) or (self._tex and self._tex.is_open):
            return []
        rest = self._cleaner.settle() if self._cleaner else ""
        if rest is None:
            return []
        self._tail = ""
        return [*self._finish_part(rest)]

    def finish(self, piece: str = "") -> list[Event]:
        """Return the rest with its last piece."""
        rest = finish_stages(self._before_pauses, self._with_spans(piece))
        return self._read(rest, is_final=True)

    def _read(self, piece: str, *, is_final: bool = False) -> list[Event]:
        text, self._held = self._held + piece, ""
        if not is_final and (mark := OPEN_MARK.search(text)):
            text, self._held = text[: mark.start()], text[mark.start() :]
        parts, text = parse_pauses(text, self._errors), ""
        events: list[Event] = []
        for part in parts:
            if isinstance(part, Pause):
                events += [*self._finish_part(text), part]
                text = ""
            else:
                text += part
        return events + (self._finish_part(text) if is_final else self._feed_part(text))

    def _feed_part(self, text: str) -> list[str | Cut]:
        text = feed_stages(self._stages, text) if text else ""
        return self._make_plain(self._packer.feed(text)) if text else []

    def _finish_part(self, text: str) -> list[str | Cut]:
        """Finish the text before a pause or before the end; `text` is its last piece."""
        events = self._make_plain(self._packer.finish(finish_stages(self._stages, text)))
        if self._plain is not None:
            _append(events, self._plain.finish())
        return events

    def _make_plain(self, events: list[str | Cut]) -> list[str | Cut]:
        if self._plain is None:
            return events
        plain: list[str | Cut] = []
        for event in events:
            if isinstance(event, Cut):
                _append(plain, self._plain.finish(is_inside=event.is_inside))
                plain.append(event)
            elif self._keeps_signs and not self._is_speakable(event):
                plain.append(event)  # becomes silence
            else:
                plain.append(self._plain.feed(event))
        return [event for event in plain if event != ""]


def _open_stages(options: ScriptOptions, words: WrittenWords | None) -> Iterator[Stage]:
    """The stages between pause marks and packing."""
    if not options.keep_emoji and not options.clean:
        yield EmojiDropper()
    if options.plain_breaks:
        yield BreakReader()
    is_english = options.normalize and options.language == "english"
    yield Respeller(options.lexicon, is_english=is_english, words=words)
    if options.packing == "whole":
        yield _LengthCheck()
    if options.normalize:
        yield open_normalizer(options.language)
    if options.letter_names:
        yield LetterNames(options.letter_names)
    # Without normalization a full stop may be an abbreviation's. A live sentence does not wait.
    if options.min_chars and options.normalize and options.packing == "whole":
        yield ShortSentences(options.min_chars)


class _LengthCheck:
    """Raises TextTooLongError if respellings make a known text too long."""

    def __init__(self) -> None:
        self._num_chars = 0

    def feed(self, piece: str) -> str:
        self._num_chars += len(piece)
        if self._num_chars > MAX_TEXT_CHARS:
            raise TextTooLongError(self._num_chars, MAX_TEXT_CHARS, "characters, respelled,")
        return piece

    def finish(self, piece: str = "") -> str:
        return self.feed(piece)


def _append(events: list[str | Cut], rest: str) -> None:
    """Add the end of an utterance to its last text: a sentence is one event."""
    if rest and events and isinstance(events[-1], str):
        events[-1] += rest
    elif rest:
        events.append(rest)
