"""Text that is still being written: utterances as they come, ids as soon as they are certain."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from vivace.engine.long_text import SILENT_S
from vivace.errors import RequestError
from vivace.text.cutter import Cut
from vivace.text.letters import Letters, is_speakable
from vivace.text.live import LiveTokenizer
from vivace.text.live_script import Event, LiveScript
from vivace.text.script import Pause


class StoppableText(Iterator[str]):
    """Pieces of a text, until it is stopped."""

    def __init__(self, pieces: Iterator[str]) -> None:
        self._pieces = pieces
        self._is_stopped = False

    def __next__(self) -> str:
        if self._is_stopped:
            raise StopIteration
        return next(self._pieces)

    def stop(self) -> None:
        self._is_stopped = True


class LiveSource:
    """Pulls pieces only when text is needed, so a slow reader slows the writer down.

    What cannot be said is left out: the rest is said, then the caller hears the first error. An
    iterator that raises ends the text.
    """

    def __init__(
        self,
        pieces: Iterator[str],
        script: LiveScript,
        open_tokenizer: Callable[[], LiveTokenizer],
        *,
        letters: Letters,
        refuse: Callable[[str], RequestError],  # a letter
        with_emoji: bool = False,
    ) -> None:
        self._pieces = pieces
        self._script = script
        self._open_tokenizer = open_tokenizer
        self._letters = letters
        self._refuse = refuse
        self._with_emoji = with_emoji
        self._events: deque[Event] = deque()
        self._is_written = False
        self._error: Exception | None = None
        self.last_cut = Cut()  # before the utterance at hand

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come; does not wait."""
        return self._is_written and not self._events

    def next_part(self) -> LiveText | Pause | None:
        """The next utterance or pause, None at the end; waits for the writer."""
        while (part := self._next_utterance()) is None and (event := self.peek()) is not None:
            self._events.popleft()
            if isinstance(event, Pause):
                return event
            assert isinstance(event, Cut)
            self.last_cut = event
        return part

    def _next_utterance(self) -> LiveText | Pause | None:
        """Silence if nothing of it can be said, None if it is blank or left out."""
        begun: list[str] = []
        is_found, num_own, num_foreign = False, 0, 0
        while (text := self.take_text()) is not None:
            begun.append(text)
            is_found = is_found or is_speakable(text, with_emoji=self._with_emoji)
            own, foreign = self._letters.count(text)
            num_own, num_foreign = num_own + own, num_foreign + foreign
            if is_found and num_own >= num_foreign:
                self._events.appendleft("".join(begun))
                return LiveText(self, self._open_tokenizer())
        whole = "".join(begun)
        if (letter := self._letters.find_foreign(whole)) is not None:
            self._fail(self._refuse(letter))
            return None
        return Pause(SILENT_S) if whole.strip() else None

    def peek(self) -> Event | None:
        """The next event, None at the end; waits for the writer."""
        while not self._events and not self._is_written:
            self._pull()
        return self._events[0] if self._events else None

    def take_text(self) -> str | None:
        """The next text of this utterance, None at its end."""
        event = self.peek()
        if not isinstance(event, str):
            return None
        self._events.popleft()
        return event

    def raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _fail(self, error: Exception | None) -> None:
        self._error = self._error or error

    def _pull(self) -> None:
        try:
            piece = next(self._pieces)
            if not isinstance(piece, str):
                raise RequestError(f"text pieces must be strings, not {type(piece).__name__}")
            self._take_in(self._script.feed(piece))
            return
        except StopIteration:
            pass
        except Exception as error:
            self._fail(error)
        self._is_written = True
        self._take_in(self._script.finish())

    def _take_in(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, str) and self._letters.is_strict:
                if (letter := self._letters.find_foreign(event)) is not None:
                    self._fail(self._refuse(letter))
                event = self._letters.without_foreign(event)
            if event != "":
                self._events.append(event)
        self._fail(self._script.error)


class LiveText:
    """One utterance of a source."""

    def __init__(self, source: LiveSource, tokenizer: LiveTokenizer) -> None:
        self._source = source
        self._tokenizer = tokenizer
        self.is_done = False
        self.num_ids = 0

    def take(self, at_least: int = 1) -> list[int]:
        """At least so many ids, or all that were left; waits for the writer."""
        ids: list[int] = []
        while len(ids) < at_least and not self.is_done:
            ids += self._read()
        self.num_ids += len(ids)
        return ids

    def _read(self) -> list[int]:
        text = self._source.take_text()
        self.is_done = text is None
        return self._tokenizer.finish() if text is None else self._tokenizer.feed(text)

    def ends_all(self) -> bool:
        """Whether it is read and nothing follows it; does not wait."""
        return self.is_done and self._source.is_over

    def skip(self) -> None:
        """Past what was not said of it."""
        while not self.is_done:
            self.is_done = self._source.take_text() is None
