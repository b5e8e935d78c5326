"""A live text as utterances and pauses: word by word as ids are certain, or by sentences."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from vivace.errors import RequestError, TextError
from vivace.script.prompts import PromptWriter
from vivace.script.request import Request
from vivace.script.script import SILENT_S, Line, seam
from vivace.text.cutter import Cut
from vivace.text.events import Event, EventReader
from vivace.text.letters import Letters, close_gaps
from vivace.text.live import LiveTokenizer
from vivace.text.markup import Pause
from vivace.text.options import TextOptions
from vivace.text.trace import Trace


class LiveScript:
    """Text is fed only when it is needed, so a slow reader slows the writer down.

    What cannot be spoken is left out: the rest is spoken, then the first error is raised. Every
    utterance continues from the voice's own reference, if it has one; continuing from the last
    utterance would have to wait for as much new text as that had frames.
    """

    def __init__(self, writer: PromptWriter, request: Request, trace: Trace | None = None) -> None:
        self._writer, self._letters = writer, writer.letters
        self._options = writer.script_options(request)
        self._skips = request.options.on_unsupported == "skip"
        self.skipped: list[str] = []
        self._trace = trace
        self._reader = EventReader(self._options, trace)
        self._events: deque[Event] = deque()
        self._beginning = _Beginning(self._letters, self._options)
        self._is_written = False
        self._error: Exception | None = None
        self._line: LiveLine | None = None  # the last one taken
        self._last_cut = Cut()
        self._needs_seam = self._has_lines = False

    @property
    def progress(self) -> float:
        return 0.0

    @property
    def is_over(self) -> bool:
        is_said = all(isinstance(event, Cut) for event in self._events)
        return self._is_written and is_said and not self._beginning

    def feed(self, piece: object) -> None:
        """More text; None, as chat models send it in chunks without text, is skipped."""
        if piece is None:
            return
        if isinstance(piece, str):
            if self._trace is not None:
                self._trace.give(piece)
            self._take_in(self._reader.feed(piece))
        else:
            kind = type(piece).__name__
            self.finish(RequestError(f"text pieces must be strings, not {kind}"))

    def finish(self, error: Exception | None = None) -> None:
        if not self._is_written:
            self._is_written = True
            self._fail(error)
            self._take_in(self._reader.finish())

    def settle(self) -> bool:
        """The writer pauses; whether there is more to say now. Words need no such help."""
        if not self._options.by_sentence or self._is_written:
            return False
        self._take_in(self._reader.settle())
        return bool(self._events)

    def raise_error(self) -> None:
        if self._error is not None:
            raise self._error
        if self.is_over and not self._has_lines and self.skipped:
            raise self._writer.refuse_letter(self.skipped[0][0])
        if self.is_over and not self._has_lines:
            raise TextError("the text has no words in it; there is nothing to say")

    def next_part(self) -> Line | Pause | None:
        if self._line is not None and not self._line.skip():
            return None
        self._line = None
        while self._events:
            event = self._events.popleft()
            if isinstance(event, str):
                if self._beginning.add(event):
                    self._events.appendleft(self._beginning.take())
                    return self._next_line()
                continue
            self._events.appendleft(event)
            if (part := self._end_beginning()) is not None:
                return part
            self._events.popleft()
            if isinstance(event, Pause):
                self._needs_seam = False
                return event
            self._last_cut = event
        return self._end_beginning() if self._is_written else None

    def _next_line(self) -> Line | Pause:
        if self._needs_seam:
            self._needs_seam = False
            return seam(self._options, self._last_cut)
        self._needs_seam = self._has_lines = True
        tokenizer = LiveTokenizer(self._writer.tokenizer, strip_end=self._options.strip_end)
        self._line = LiveLine(self, tokenizer, is_whole=self._options.by_sentence)
        return self._line

    def _end_beginning(self) -> Line | Pause | None:
        """Silence for an utterance of nothing that can be spoken."""
        text = self._beginning.take()
        if (letter := self._letters.find_foreign(text)) is not None:
            return self._refuse_beginning(text, letter)
        if not text.strip():
            return None
        self._needs_seam = False
        return Pause(SILENT_S)

    def _refuse_beginning(self, text: str, letter: str) -> Line | Pause | None:
        """Speak what is left of an utterance that has too many foreign letters."""
        if not self._skips:
            self._fail(self._writer.refuse_letter(letter))
            return None
        text, runs = self._letters.skip_foreign(text)
        self.skipped += runs
        if not self._options.is_speakable(text):
            return None
        self._events.appendleft(close_gaps(text))
        return self._next_line()

    def take_text(self) -> str | None:
        """The next text of the utterance at hand; None at its end, and where more must come."""
        return str(self._events.popleft()) if self._next_is_text() else None

    @property
    def is_line_over(self) -> bool:
        """Whether the text of the utterance at hand was taken to its end."""
        return self.is_over or (bool(self._events) and not self._next_is_text())

    def _next_is_text(self) -> bool:
        return bool(self._events) and isinstance(self._events[0], str)

    def _fail(self, error: Exception | None) -> None:
        self._error = self._error or error

    def _take_in(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, str) and self._letters.is_strict:
                event, runs = self._letters.skip_foreign(event)
                if runs and not self._skips:
                    self._fail(self._writer.refuse_letter(runs[0][0]))
                self.skipped += runs
                if runs:
                    event = self._close_gaps(event)
            if event != "":
                self._events.append(event)
        self._fail(self._reader.error)

    def _close_gaps(self, text: str) -> str:
        """A text of which letters were left out; "" if nothing to say is left."""
        if not self._options.is_speakable(text):
            return ""
        return close_gaps(text) if self._options.by_sentence else text


class _Beginning:
    """The first of an utterance, until it has something that can be spoken."""

    def __init__(self, letters: Letters, options: TextOptions) -> None:
        self._letters, self._options = letters, options
        self._texts: list[str] = []
        self._is_found, self._num_own, self._num_foreign = False, 0, 0

    def __bool__(self) -> bool:
        return bool(self._texts)

    def add(self, text: str) -> bool:
        """Whether it can be spoken now: something has a sound, and own letters are the most."""
        self._texts.append(text)
        self._is_found = self._is_found or self._options.is_speakable(text)
        own, foreign = self._letters.count(text)
        self._num_own, self._num_foreign = self._num_own + own, self._num_foreign + foreign
        return self._is_found and self._num_own >= self._num_foreign

    def take(self) -> str:
        text = "".join(self._texts)
        self._texts = []
        self._is_found, self._num_own, self._num_foreign = False, 0, 0
        return text


class LiveLine:
    def __init__(self, script: LiveScript, tokenizer: LiveTokenizer, *, is_whole: bool) -> None:
        self._script, self._tokenizer = script, tokenizer
        self._is_whole = is_whole  # it is taken with all its ids
        self._ids: list[int] = []  # known and not yet taken
        self._is_read = False
        self.text = ""

    @property
    def is_complete(self) -> bool:
        return self._is_read and not self._ids

    def has(self, num_ids: int) -> bool:
        while (self._is_whole or len(self._ids) < num_ids) and not self._is_read:
            if (text := self._script.take_text()) is not None:
                self.text += text
                self._ids += self._tokenizer.feed(text)
            elif self._script.is_line_over:
                self._is_read = True
                self._ids += self._tokenizer.finish()
            else:
                return False
        return True

    def take(self) -> Sequence[int]:
        ids, self._ids = self._ids, []
        return ids

    def skip(self) -> bool:
        """Pass over what was not spoken of it; False if its end is not written yet."""
        while not self._is_read:
            if self._script.take_text() is None:
                if not self._script.is_line_over:
                    return False
                self._is_read = True
        return True
