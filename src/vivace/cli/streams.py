"""Writes to stdout and stderr. Messages go to stderr, results to stdout.

A closed or full stdout raises StdoutError. Control characters are replaced, so that text from
files and servers is safe to print on a terminal.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import IO, Any, BinaryIO, cast

from vivace.errors import RequestError, TTSError

STDIN = STDOUT = "-"
STDOUT_PATHS = (STDOUT, "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


class StdoutError(TTSError):
    """Stdout could not be written; the output is incomplete."""


def open_closed_streams() -> None:
    """Open /dev/null for closed standard streams. The next opened file would get their number."""
    for number, flags in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # gets the lowest free number; writing to stdout fails
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def is_terminal_stdin() -> bool:
    return sys.stdin is None or sys.stdin.isatty()


def open_stdin(argument: str) -> BinaryIO:
    """The bytes of stdin. Raises RequestError if stdin is closed; `argument` can replace it."""
    if sys.stdin is None:
        raise RequestError(f"stdin is closed; pass {argument} as an argument")
    return cast("BinaryIO", sys.stdin.buffer)


def print_stderr(text: object, *, start: str = "", end: str = "\n") -> None:
    """Print lines on stderr. A closed stderr is ignored."""
    try:
        sys.stderr.write(start + _printable_lines(text, sys.stderr) + end)
        sys.stderr.flush()
    except (OSError, ValueError):
        _redirect_to_null(sys.stderr)


def print_stdout(text: object) -> None:
    """Print lines on stdout and flush."""
    write_stdout(f"{_printable_lines(text, sys.stdout)}\n".encode(_encoding(sys.stdout)))


def print_json(value: object, *, indent: int | None = None, on_stderr: bool = False) -> None:
    (print_stderr if on_stderr else print_stdout)(json.dumps(value, indent=indent))


def print_table(rows: Iterable[tuple[str, object]], *, width: int) -> None:
    """Print names and values; the names take `width` characters."""
    for name, value in rows:
        print_stdout(f"{name:<{width}} {printable(value)}")


def print_columns(rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table whose columns are as wide as their longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print_stdout("  ".join(cells).rstrip())


def write_stdout(content: bytes) -> None:
    """Write bytes to stdout and flush. A closed pipe raises BrokenPipeError."""
    try:
        file = getattr(sys.stdout, "buffer", None)
        if file is None:  # a text stream without bytes, as in tests
            sys.stdout.write(content.decode())
        else:
            sys.stdout.flush()
            file.write(content)
            file.flush()
    except BrokenPipeError:
        _redirect_to_null(sys.stdout)
        raise
    except (OSError, ValueError) as error:
        _redirect_to_null(sys.stdout)
        reason = getattr(error, "strerror", None) or error
        raise StdoutError(f"cannot write to stdout: {reason}") from error


def printable(value: object) -> str:
    """One line with control characters replaced; file names may contain escape codes."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(value))


def _printable_lines(text: object, stream: IO[Any]) -> str:
    lines = "\n".join(printable(line) for line in str(text).split("\n"))
    return lines.encode(_encoding(stream), "backslashreplace").decode(_encoding(stream))


def _encoding(stream: IO[Any]) -> str:
    return getattr(stream, "encoding", None) or "utf-8"


def _redirect_to_null(stream: IO[Any]) -> None:
    """Redirect a broken stream to /dev/null. Otherwise Python flushes it at exit and fails."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
