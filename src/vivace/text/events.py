"""Live text as a sequence of utterances and pauses.

Text passes through as it arrives, except what later text may still change: half a mark, a word
of the lexicon, a number, or a full stop that may end an utterance.
"""

from __future__ import annotations

from vivace.errors import RequestError
from vivace.text.cutter import Cut, Cutter
from vivace.text.emoji import EmojiDropper
from vivace.text.live_clean import LiveCleaner
from vivace.text.markup import OPEN_MARK, Pause, ScriptOptions, parse_pauses
from vivace.text.normalize import open_normalizer
from vivace.text.respell import Respeller
from vivace.text.tidy import Tidier

Event = str | Pause | Cut


class EventReader:
    """Turns pieces of a text into speakable text, pauses and cuts between utterances."""

    def __init__(self, options: ScriptOptions) -> None:
        self._options = options
        self._tidier = Tidier()
        self._cleaner = LiveCleaner() if options.clean else None
        self._held = ""  # what may be the beginning of a pause mark
        self._reader = _Reader(options)
        self._refused: list[RequestError] = []

    @property
    def error(self) -> RequestError | None:
        """The first thing in the text that could not be said and was left out."""
        return next(iter(self._refused), self._tidier.error)

    def feed(self, piece: str) -> list[Event]:
        """What has become certain."""
        piece = self._tidier.feed(piece)
        return self._read(self._cleaner.feed(piece) if self._cleaner else piece, is_final=False)

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
                self._reader = _Reader(self._options)
            else:
                found += self._reader.feed(part)
        return found + (self._reader.finish() if is_final else [])


class _Reader:
    """Text without pauses to utterances."""

    def __init__(self, options: ScriptOptions) -> None:
        self._dropper = None if options.keep_emoji else EmojiDropper()
        self._respeller = Respeller(options.lexicon, is_english=options.normalize)
        self._normalizer = open_normalizer() if options.normalize else None
        self._cutter = Cutter(options.max_chars)

    def feed(self, text: str) -> list[str | Cut]:
        if self._dropper:
            text = self._dropper.feed(text)
        text = self._respeller.feed(text)
        return self._cutter.feed(self._normalizer.feed(text) if self._normalizer else text)

    def finish(self) -> list[str | Cut]:
        rest = self._respeller.feed(self._dropper.finish() if self._dropper else "")
        rest += self._respeller.finish()
        if self._normalizer:
            rest = self._normalizer.feed(rest) + self._normalizer.finish()
        return self._cutter.feed(rest) + self._cutter.finish()
