"""Text that is still being written: utterances as they come, ids as soon as they are certain."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from vivace.errors import RequestError
from vivace.text.live import LiveTokenizer
from vivace.text.live_script import Event, LiveScript
from vivace.text.script import Pause


class LiveSource:
    """Pulls pieces only when text is needed, so a slow reader slows the writer down.

    An iterator that raises ends the text: what it gave is said, then the caller hears the error.
    """

    def __init__(
        self,
        pieces: Iterator[str],
        script: LiveScript,
        open_tokenizer: Callable[[], LiveTokenizer],
    ) -> None:
        self._pieces = pieces
        self._script = script
        self._open_tokenizer = open_tokenizer
        self._events: deque[Event] = deque()
        self._is_written = False
        self._error: Exception | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come; does not wait."""
        return self._is_written and not self._events

    def next_part(self) -> LiveText | Pause | None:
        """The next utterance or pause, None at the end; waits for the writer."""
        blank = ""  # white space that leads an utterance belongs to it
        while (event := self.peek()) is not None:
            self._events.popleft()
            if isinstance(event, Pause):
                return event
            if not isinstance(event, str):
                continue
            blank += event
            if event.strip():
                self._events.appendleft(blank)
                return LiveText(self, self._open_tokenizer())
        return None

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

    def fail(self, error: Exception) -> None:
        """End here; what was given before is said."""
        self._error = self._error or error
        self._is_written = True
        self._events.clear()

    def raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _pull(self) -> None:
        try:
            piece = next(self._pieces)
            if not isinstance(piece, str):
                raise RequestError(f"text pieces must be strings, not {type(piece).__name__}")
            self._events += self._script.feed(piece)
            return
        except StopIteration:
            pass
        except Exception as error:
            self._error = error
        self._is_written = True
        try:
            self._events += self._script.finish()
        except RequestError as error:  # a pause mark that was left open
            self._error = self._error or error


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
        try:
            return self._tokenizer.finish() if text is None else self._tokenizer.feed(text)
        except RequestError as error:  # half of a surrogate pair
            self._source.fail(error)
            self.is_done = True
            return []

    def ends_all(self) -> bool:
        """Whether it is read and nothing follows it; does not wait."""
        return self.is_done and self._source.is_over

    def skip(self) -> None:
        """Past what was not said of it."""
        while not self.is_done:
            self.is_done = self._source.take_text() is None
