"""The utterances and pauses of a text, in order.

`PartReader` reads the events of a `TextPipeline`. It adds the silence between utterances, replaces
utterances without words by silence, and removes letters that the checkpoint does not support.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property

from vivace.errors import RequestError, TextError
from vivace.text.letters import Letters, LetterSkipper, close_gaps
from vivace.text.options import ScriptOptions
from vivace.text.packing import Cut
from vivace.text.pauses import SILENT_S, Pause
from vivace.text.pipeline import Event, TextPipeline
from vivace.text.spans import join
from vivace.text.written_words import WrittenWords

MAX_INSIDE_SEAM_S = 0.15  # silence between two utterances of one sentence

LetterError = Callable[[str], RequestError]


def seam(options: ScriptOptions, cut: Cut) -> Pause:
    """The silence between two utterances: shorter inside a sentence, longer after a paragraph."""
    if cut.is_paragraph and options.paragraph_s is not None:
        return Pause(options.paragraph_s)
    return Pause(min(options.seam_s, MAX_INSIDE_SEAM_S) if cut.is_inside else options.seam_s)


class PartReader:
    """Utterances and pauses of a text in pieces.

    Parts that cannot be spoken are left out. `error` is the first reason.
    """

    def __init__(
        self,
        options: ScriptOptions,
        letters: Letters,
        letter_error: LetterError,
        *,
        skips_letters: bool = False,  # unsupported letters are recorded in `skipped`, not rejected
        words: WrittenWords | None = None,  # collects the words of the text
    ) -> None:
        self._options, self._letters = options, letters
        self._letter_error, self._skips_letters = letter_error, skips_letters
        self._words = words
        self._events: deque[Event] = deque()
        self._beginning = _Beginning(options, letters)
        self._utterance: UtteranceText | None = None  # the last one returned
        self._last_cut = Cut(is_inside=True)
        self._needs_seam = self._has_utterances = False
        self._is_complete = False  # no more text follows
        self._error: Exception | None = None
        self.skipped: list[str] = []
        self._skipper = LetterSkipper(letters, self.skipped)  # of the current utterance

    @cached_property
    def _pipeline(self) -> TextPipeline:
        return TextPipeline(self._options, self._words)

    def feed(self, piece: str) -> None:
        self._add(self._pipeline.feed(piece))
        self._fail(self._pipeline.error)

    def finish(self, piece: str = "", *, error: Exception | None = None) -> None:
        """No text follows the last `piece`; `error` is the reason why the text ended early."""
        if not self._is_complete:
            self._is_complete = True
            self._fail(error)
            events = self._pipeline.finish(piece)
            self._fail(self._pipeline.error)
            self._add(events)

    def settle(self) -> bool:
        """Take in a sentence that has certainly ended; return whether a part is available."""
        if self._options.packing == "words" or self._is_complete:
            return False
        self._add(self._pipeline.settle())
        self._fail(self._pipeline.error)
        return bool(self._events)

    @property
    def is_over(self) -> bool:
        """Whether all parts were returned and no more text follows."""
        has_parts = any(not isinstance(event, Cut) for event in self._events)
        return self._is_complete and not has_parts and not self._beginning

    @property
    def error(self) -> Exception | None:
        if self._error is None and self.is_over and not self._has_utterances:
            if self.skipped:
                return self._letter_error(self.skipped[0][0])
            return TextError("the text has no words in it; there is nothing to speak")
        return self._error

    def next_part(self) -> UtteranceText | Pause | None:
        """Return the next part; None at the end, or if more text must be fed first."""
        if self._utterance is not None and not self._utterance.skip():
            return None
        self._utterance = None
        while self._events:
            event = self._events.popleft()
            if isinstance(event, str):
                if self._beginning.add(event):
                    self._events.appendleft(self._beginning.take())
                    return self._begin_utterance()
                continue
            self._events.appendleft(event)
            if (part := self._end_beginning()) is not None:
                return part
            self._events.popleft()
            if isinstance(event, Pause):
                self._needs_seam = False
                return event
            # An utterance between two cuts was left out: the longer silence stays.
            self._last_cut = max(
                self._last_cut, event, key=lambda cut: seam(self._options, cut).seconds
            )
        return self._end_beginning() if self._is_complete else None

    def _begin_utterance(self) -> UtteranceText | Pause:
        if self._needs_seam:
            self._needs_seam = False
            return seam(self._options, self._last_cut)
        self._needs_seam = self._has_utterances = True
        self._last_cut = Cut(is_inside=True)
        self._utterance = UtteranceText(self)
        return self._utterance

    def _end_beginning(self) -> UtteranceText | Pause | None:
        """Return silence for an utterance without words."""
        beginning = self._beginning.take()
        if (letter := self._letters.find_foreign(beginning)) is not None:
            return self._reject_beginning(beginning, letter)
        if not beginning.strip():
            return None
        self._needs_seam = False
        return Pause(SILENT_S)

    def _reject_beginning(self, beginning: str, letter: str) -> UtteranceText | Pause | None:
        """Leave out an utterance with too many foreign letters, or these letters only."""
        if not self._skips_letters:
            self._fail(self._letter_error(letter))
            return None
        own, runs = self._letters.skip_foreign(beginning)
        self.skipped += runs
        if not self._options.is_speakable(own):
            return None
        self._events.appendleft(close_gaps(own))
        return self._begin_utterance()

    def take_text(self) -> str | None:
        """Return the next text of the current utterance; None at its end or without more text."""
        text = self._events[0] if self._events else None
        if not isinstance(text, str):
            return None
        self._events.popleft()
        return text

    @property
    def is_utterance_over(self) -> bool:
        is_next = bool(self._events) and not isinstance(self._events[0], str)
        return self.is_over or is_next

    def _fail(self, error: Exception | None) -> None:
        self._error = self._error or error

    def _add(self, events: Sequence[Event]) -> None:
        for event in events:
            if not isinstance(event, str):
                self._events.append(event)
                self._skipper = LetterSkipper(self._letters, self.skipped)
            elif text := self._without_foreign(event):
                self._events.append(text)

    def _without_foreign(self, event: str) -> str:
        """Leave out foreign letters if the checkpoint rejects each of them."""
        if not self._letters.is_strict:
            return event
        num_runs = len(self.skipped)
        text = self._skipper.feed(event)
        if len(self.skipped) > num_runs and not self._skips_letters:
            self._fail(self._letter_error(self.skipped[num_runs][0]))
        if self._options.packing == "words" or text == event:
            return text
        return close_gaps(text) if self._options.is_speakable(text) else ""


class UtteranceText:
    """The text of one utterance, as far as it is known."""

    def __init__(self, reader: PartReader) -> None:
        self._reader = reader
        self.is_over = False  # all text was taken

    def take(self) -> str | None:
        """Return more text; None at the end of the utterance or if more text must be fed."""
        text = None if self.is_over else self._reader.take_text()
        self.is_over |= text is None and self._reader.is_utterance_over
        return text

    def take_all(self) -> str:
        """Return an utterance that is known as a whole."""
        return join(list(iter(self.take, None)))

    def skip(self) -> bool:
        """Drop the rest; return False if the end of the utterance is not known yet."""
        while self.take() is not None:
            pass
        return self.is_over


class _Beginning:
    """The start of an utterance, until it contains something that can be spoken."""

    def __init__(self, options: ScriptOptions, letters: Letters) -> None:
        self._options, self._letters = options, letters
        self._texts: list[str] = []
        self._is_found, self._num_own, self._num_foreign = False, 0, 0

    def __bool__(self) -> bool:
        return bool(self._texts)

    def add(self, text: str) -> bool:
        """Add text; return whether words were found and at least half of the letters are own.

        Of a text that is spoken by words, any beginning is enough, so that the result does not
        depend on the pieces.
        """
        self._texts.append(text)
        parts = text if self._options.packing == "words" else (text,)
        if any(map(self._is_enough, parts)):
            return True
        self._is_found = self._is_found or self._options.is_speakable(text)  # also emoji
        return self._is_found and self._num_own >= self._num_foreign

    def _is_enough(self, part: str) -> bool:
        self._is_found = self._is_found or self._options.is_speakable(part)
        if part.isascii() and not self._num_foreign:  # the usual part
            return self._is_found
        own, foreign = self._letters.count(part)
        self._num_own, self._num_foreign = self._num_own + own, self._num_foreign + foreign
        return self._is_found and self._num_own >= self._num_foreign

    def take(self) -> str:
        text, self._texts = join(self._texts), []
        self._is_found, self._num_own, self._num_foreign = False, 0, 0
        return text
