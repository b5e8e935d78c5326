"""Makes names of speakers and of their files unique."""

from __future__ import annotations

from collections.abc import Callable


class FreeNames:
    """Adds a number to names that are taken: `Ben`, `Ben-2`, `Ben-3`."""

    def __init__(self, fold: Callable[[str], str] = str) -> None:
        """Two names are equal if `fold` returns the same string for both."""
        self._fold = fold
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def take(self, name: str) -> str:
        key = self._fold(name)
        free, number = name, self._next.get(key, 2)
        while self._fold(free) in self._taken:
            free, number = f"{name}-{number}", number + 1
        self._next[key] = number
        self._taken.add(self._fold(free))
        return free
