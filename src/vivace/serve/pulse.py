"""Whether an engine hangs, and whether its queue has been full for long.

Ticks are counted and not seconds: a process that was stopped meanwhile has not hung.
"""

from __future__ import annotations

from collections import deque

HANG_TICKS = 20
FULL_TICKS, MOSTLY = 20, 18  # a queue that is full a moment later again was full all along


class Pulse:
    def __init__(self) -> None:
        self._busy_since: float | None = None
        self._num_ticks = 0

    def has_stopped(self, busy_since: float | None) -> bool:
        """Asked once a tick, with when the turn under way began; None is an idle engine."""
        is_same = busy_since is not None and busy_since == self._busy_since
        self._num_ticks = self._num_ticks + 1 if is_same else 0
        self._busy_since = busy_since
        return self._num_ticks >= HANG_TICKS


class Fullness:
    """Full at `MOSTLY` of the last `FULL_TICKS` ticks is full for long."""

    def __init__(self) -> None:
        self._seen: deque[bool] = deque(maxlen=FULL_TICKS)

    def has_lasted(self, is_full: bool) -> bool:
        """Asked once a tick."""
        self._seen.append(is_full)
        return sum(self._seen) >= MOSTLY
