"""Live text as a sequence of utterances and pauses.

Text passes through as it arrives, except what later text may still change: half a mark, a word
of the lexicon, a number, or a full stop that may end an utterance.
"""

from __future__ import annotations

from vivace.errors import RequestError
from vivace.text.breaks import BreakReader
from vivace.text.cutter import BlockCutter, Cut
from vivace.text.emoji import EmojiDropper
from vivace.text.live_clean import LiveCleaner
from vivace.text.markup import OPEN_MARK, Pause, ScriptOptions, item_end, parse_pauses
from vivace.text.normalize import open_normalizer
from vivace.text.plain import PlainText
from vivace.text.respell import Respeller
from vivace.text.split import ends_sentence
from vivace.text.tidy import Tidier
from vivace.text.trace import Trace

Event = str | Pause | Cut
MAX_TAIL = 256  # characters that are looked at for the end of a sentence


class EventReader:
    """Turns pieces of a text into speakable text, pauses and cuts between utterances."""

    def __init__(self, options: ScriptOptions, trace: Trace | None = None) -> None:
        self._options, self._trace = options, trace
        self._tidier = Tidier()
        cleaner = LiveCleaner(options, item_end=item_end(options))
        self._cleaner = cleaner if options.clean else None
        self._held = ""  # what may be the beginning of a pause mark
        self._tail = ""  # of the text, which says whether a sentence has ended
        self._reader = _Reader(options, trace)
        self._refused: list[RequestError] = []

    @property
    def error(self) -> RequestError | None:
        """The first thing in the text that could not be said and was left out."""
        return next(iter(self._refused), self._tidier.error)

    def feed(self, piece: str) -> list[Event]:
        """What has become certain."""
        piece = self._tidier.feed(piece)
        self._tail = (self._tail + piece)[-MAX_TAIL:]
        return self._read(self._cleaner.feed(piece) if self._cleaner else piece, is_final=False)

    def settle(self) -> list[Event]:
        """The writer pauses: a sentence that has surely ended need not wait for the next."""
        if self._held or not ends_sentence(self._tail):
            return []
        rest = self._cleaner.settle() if self._cleaner else ""
        if rest is None:
            return []
        self._tail = ""
        found: list[Event] = [*self._reader.feed(rest), *self._reader.finish()]
        self._reader = _Reader(self._options, self._trace)
        return found

    def finish(self) -> list[Event]:
        """The rest."""
        self._tidier.finish()
        return self._read(self._cleaner.finish() if self._cleaner else "", is_final=True)

    def _read(self, piece: str, *, is_final: bool) -> list[Event]:
        text, self._held = self._held + piece, ""
        if not is_final and (mark := OPEN_MARK.search(text)):
            text, self._held = text[: mark.start()], mark[0]
        found: list[Event] = []
        for part in parse_pauses(text, self._refused):
            if isinstance(part, Pause):
                found += [*self._reader.finish(), part]
                self._reader = _Reader(self._options, self._trace)
            else:
                found += self._reader.feed(part)
        return found + (self._reader.finish() if is_final else [])


class _Reader:
    """Text without pauses to utterances."""

    def __init__(self, options: ScriptOptions, trace: Trace | None) -> None:
        self._dropper = None if options.keep_emoji else EmojiDropper()
        english = options.normalize
        self._respeller = Respeller(options.lexicon, is_english=english, trace=trace)
        self._normalizer = open_normalizer(trace) if english else None
        self._breaks = BreakReader() if options.plain_breaks else None
        self._plain = PlainText(options.plain) if options.plain_breaks else None
        self._cutter = BlockCutter(options)
        self._trace = trace
        if trace is not None:
            trace.break_word()

    def feed(self, text: str) -> list[str | Cut]:
        text = self._dropper.feed(text) if self._dropper else text
        text = self._breaks.feed(text) if self._breaks else text
        return self._make_plain(self._cutter.feed(self._say(self._respeller.feed(text))))

    def finish(self) -> list[str | Cut]:
        rest = self._dropper.finish() if self._dropper else ""
        rest = self._breaks.feed(rest) + self._breaks.finish() if self._breaks else rest
        rest = self._say(self._respeller.feed(rest) + self._respeller.finish())
        if self._normalizer:
            rest += self._normalizer.finish()
        events = self._make_plain(self._cutter.feed(rest) + self._cutter.finish())
        return _join_last(events, self._plain.finish() if self._plain else "")

    def _make_plain(self, events: list[str | Cut]) -> list[str | Cut]:
        if self._plain is None:
            return events
        plain: list[str | Cut] = []
        for event in events:
            if isinstance(event, Cut):
                plain = [*_join_last(plain, self._plain.finish(is_inside=event.is_inside)), event]
            else:
                plain.append(self._plain.feed(event))
        return [event for event in plain if event != ""]

    def _say(self, text: str) -> str:
        if self._normalizer:
            return self._normalizer.feed(text)
        if self._trace is not None:
            self._trace.say(text, text)
        return text


def _join_last(events: list[str | Cut], rest: str) -> list[str | Cut]:
    """Add the end of an utterance to its last text: a sentence comes as one text."""
    if rest and events and isinstance(events[-1], str):
        return [*events[:-1], events[-1] + rest]
    return [*events, rest] if rest else events
