"""Gives every speaker, and every speaker's file, a name of its own."""

from __future__ import annotations

from collections.abc import Callable


class FreeNames:
    """Numbers names that were given before: `Ben`, `Ben-2`, `Ben-3`."""

    def __init__(self, fold: Callable[[str], str] = str) -> None:
        """Names are the same if `fold` makes them the same."""
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
