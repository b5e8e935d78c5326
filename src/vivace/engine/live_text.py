"""Text that is still being written: pieces from an iterator, ids as soon as they are certain."""

from __future__ import annotations

from collections.abc import Iterator

from vivace.errors import RequestError
from vivace.text.live import LiveTokenizer


class LiveText:
    """Pulls pieces only when ids are needed, so a slow reader slows the writer down.

    An iterator that raises ends the text: what it gave is said, then `error` is the caller's.
    """

    def __init__(self, pieces: Iterator[str], tokenizer: LiveTokenizer) -> None:
        self._pieces = pieces
        self._tokenizer = tokenizer
        self.is_done = False
        self.num_ids = 0
        self.error: Exception | None = None

    def take(self, at_least: int = 1) -> list[int]:
        """At least so many ids, or all that were left; waits for the writer."""
        ids: list[int] = []
        while len(ids) < at_least and not self.is_done:
            ids += self._pull()
        self.num_ids += len(ids)
        return ids

    def _pull(self) -> list[int]:
        try:
            piece = next(self._pieces)
            if not isinstance(piece, str):
                raise RequestError(f"text pieces must be strings, not {type(piece).__name__}")
            return self._tokenizer.feed(piece)
        except StopIteration:
            pass
        except Exception as error:
            self.error = error
        self.is_done = True
        return self._tokenizer.finish()
