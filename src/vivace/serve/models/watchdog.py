"""Detects an engine that hangs, and a queue that stays full.

Both count ticks instead of seconds, so that a process that was suspended is not reported as hung.
"""

from __future__ import annotations

from collections import deque

HANG_TICKS = 20
FULL_TICKS = 20
MIN_FULL_TICKS = 18  # a queue under overload has a free place for moments


class Watchdog:
    """Reports a hang when one turn of the engine lasts `HANG_TICKS` ticks."""

    def __init__(self) -> None:
        self._busy_since: float | None = None
        self._num_ticks = 0

    def tick(self, busy_since: float | None) -> bool:
        """Return whether the engine hangs; `busy_since` is the start of its turn, None if idle."""
        is_same_turn = busy_since is not None and busy_since == self._busy_since
        self._num_ticks = self._num_ticks + 1 if is_same_turn else 0
        self._busy_since = busy_since
        return self._num_ticks >= HANG_TICKS


class FullQueueDetector:
    """Reports a queue that was full at `MIN_FULL_TICKS` of the last `FULL_TICKS` ticks."""

    def __init__(self) -> None:
        self._ticks: deque[bool] = deque(maxlen=FULL_TICKS)

    def tick(self, is_full: bool) -> bool:
        self._ticks.append(is_full)
        return sum(self._ticks) >= MIN_FULL_TICKS
