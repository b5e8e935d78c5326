"""Text from an async iterator, read by the thread that makes the audio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterator
from concurrent.futures import Future


class AsyncPieces(Iterator[str]):
    """Waits, in its own thread, for pieces that an event loop produces."""

    def __init__(self, pieces: AsyncIterable[str], loop: asyncio.AbstractEventLoop) -> None:
        self._pieces = pieces.__aiter__()
        self._loop = loop
        self._pending: Future[str] | None = None

    def __next__(self) -> str:
        self._pending = asyncio.run_coroutine_threadsafe(self._pull(), self._loop)
        try:
            return self._pending.result()
        except StopAsyncIteration:
            raise StopIteration from None

    def stop(self) -> None:
        """Wake the thread that waits; it hears a cancellation."""
        if self._pending is not None:
            self._pending.cancel()

    async def _pull(self) -> str:
        return await self._pieces.__anext__()
