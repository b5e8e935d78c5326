"""The texts of one connection that are pending; they are spoken one after another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Generic, Protocol, TypeVar

from vivace.live_text import LiveText
from vivace.serve.errors import RefusedError

MAX_UTTERANCES = 8  # being written, waiting or being spoken


class PendingUtterance(Protocol):
    @property
    def text(self) -> LiveText: ...


U = TypeVar("U", bound=PendingUtterance)
Speech = Coroutine[Any, Any, None]


class UtteranceQueue(Generic[U]):
    """Utterances in the order of their first text. Each is removed after its speech."""

    def __init__(
        self, start_task: Callable[[Speech], asyncio.Task[None]], speak: Callable[[U], Speech]
    ) -> None:
        self._start_task, self._speak = start_task, speak
        self._tasks: dict[U, asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()

    def __iter__(self) -> Iterator[U]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def is_busy(self) -> bool:
        """Whether speech is pending that needs no further input from the client."""
        first = next(iter(self), None)
        return first is not None and first.text.is_ended

    def add(self, utterance: U) -> None:
        if len(self) >= MAX_UTTERANCES:
            raise RefusedError(
                f"{MAX_UTTERANCES} texts are pending; read their audio first",
                status=429,
                code="too_many_utterances",
            )
        self._tasks[utterance] = self._start_task(self._speak_in_turn(utterance))

    def cancel(self, utterance: U) -> None:
        self._tasks.pop(utterance).cancel()

    async def _speak_in_turn(self, utterance: U) -> None:
        try:
            async with self._turn:
                await self._speak(utterance)
        finally:
            self._tasks.pop(utterance, None)
