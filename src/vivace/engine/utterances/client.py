"""The interface of an engine for its readers, in this process or in another one.

`vivace.engine.engine.Engine` implements it on a thread of this process, and
`vivace.remote.client.RemoteEngine` over a connection to the engine's process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from vivace.engine.limits import EngineLoad
from vivace.engine.utterances.utterance import Utterance


class EngineClient(ABC):
    """Any thread may call the methods."""

    busy_since: float | None  # when the current turn began; None: idle

    @abstractmethod
    def submit(self, utterance: Utterance) -> None:
        """Queue an utterance. A full queue raises QueueFullError, here or when it is read."""

    @abstractmethod
    def request(self, utterance: Utterance, num_read: int, num_wanted: int) -> None:
        """The reader has `num_read` frames and waits for `num_wanted` more; 0: it does not wait."""

    @abstractmethod
    def extend(self, utterance: Utterance, text_ids: Sequence[int], is_last: bool) -> None:
        """Append live text before the next turn."""

    @abstractmethod
    def cancel(self, utterance: Utterance) -> None:
        """Free the slot after the current turn, and wake the reader.

        May be called from any thread, a finalizer or a signal handler.
        """

    @abstractmethod
    def capacity(self, num_expected: int = 0) -> EngineLoad:
        """The current load. `num_expected` accepted requests that are not yet submitted count."""

    @abstractmethod
    def check_process(self) -> None:
        """Raise EngineError in a forked child that cannot use the engine."""

    @property
    @abstractmethod
    def is_broken(self) -> bool:
        """Whether every request is refused until the model is loaded again."""

    @property
    @abstractmethod
    def num_together(self) -> int:
        """How many streams gain from being read concurrently."""

    @property
    @abstractmethod
    def follows_text(self) -> bool:
        """Whether the backend reports an attention head, so that words can be checked."""
