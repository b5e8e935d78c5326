"""Whether an engine hangs: it is found in the same turn, tick after tick.

Ticks are counted and not seconds: a process that was stopped meanwhile has not hung.
"""

from __future__ import annotations

HANG_TICKS = 20


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
