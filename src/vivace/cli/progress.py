"""A progress line on stderr that is rewritten in place."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from vivace.cli.streams import print_stderr

T = TypeVar("T")


class ProgressLine:
    """One line on a terminal. Prints nothing if stderr is not a terminal.

    Leaving the `with` block erases the line.
    """

    def __init__(self, *, is_quiet: bool = False) -> None:
        self.is_on = not is_quiet and sys.stderr.isatty()
        self._num_shown = 0  # characters

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, text: str) -> None:
        if self.is_on:
            text = text[: shutil.get_terminal_size().columns - 1]  # a wrapped line would stay
            print_stderr(text.ljust(self._num_shown), start="\r", end="")
            self._num_shown = len(text)

    def each(self, values: Iterable[T], template: str) -> Iterator[T]:
        """Iterate over the values and show each one, formatted into `template`."""
        for value in values:
            self.show(template.format(value))
            yield value

    def keep(self) -> None:
        """Keep the line on the terminal and continue on the next line."""
        if self._num_shown:
            print_stderr("")
            self._num_shown = 0

    def clear(self) -> None:
        if self._num_shown:
            print_stderr(" " * self._num_shown, start="\r", end="\r")
            self._num_shown = 0
