"""`LiveText`: a text that is written while it is spoken, with a size limit, for one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from vivace.errors import TextTooLongError


class LiveText(AsyncIterator[str]):
    """Async iterator of the pieces of a text that is still being written."""

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._pieces: list[str] = []
        self._num_taken = 0
        self._changed = asyncio.Event()
        self._error: TextTooLongError | None = None
        self.is_ended = False
        self.is_blank = True  # no speakable text so far
        self.num_chars = 0

    @property
    def received(self) -> str:
        return "".join(self._pieces)

    def add(self, piece: str) -> None:
        """Add text. Beyond the limit the whole utterance fails; it is never truncated."""
        if not piece or self._error is not None:
            return
        self.num_chars += len(piece)
        if self.num_chars > self._max_chars:
            self._error = TextTooLongError(self.num_chars, self._max_chars, "characters")
        self.is_blank = self.is_blank and not piece.strip()
        self._pieces.append(piece)
        self._changed.set()

    def end(self) -> None:
        self.is_ended = True
        self._changed.set()

    async def has_words(self) -> bool:
        """Wait for the first word. Returns False if the text ends without one."""
        while self.is_blank and not self.is_ended:
            await self._change()
        if self._error is not None:
            raise self._error
        return not self.is_blank

    async def wait_end(self) -> None:
        while not self.is_ended:
            await self._change()

    async def __anext__(self) -> str:
        while self._num_taken == len(self._pieces):
            if self.is_ended:
                raise StopAsyncIteration
            await self._change()
        if self._error is not None:
            raise self._error
        pieces = self._pieces[self._num_taken :]
        self._num_taken = len(self._pieces)
        return "".join(pieces)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
