"""The standard streams: a closed or full one is a one-line error.

Messages for people go through `tell`, output for programs through `put`; both are safe to print on
a terminal.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import IO, Any

from vivace.errors import TTSError

STDOUT = "-"
STDOUT_PATHS = (STDOUT, "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


class StdoutError(TTSError):
    """Stdout could not be written; its reader must not take the output for complete."""


def settle_streams() -> None:
    """Open /dev/null for closed standard streams, whose numbers the next file would get."""
    for number, flags in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # takes the lowest free number; writing to stdout's fails
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def is_terminal_stdin() -> bool:
    return sys.stdin is None or sys.stdin.isatty()


def tell(words: object, *, start: str = "", end: str = "\n") -> None:
    """Print lines on stderr; a closed stderr is ignored."""
    try:
        sys.stderr.write(start + _lines(words, sys.stderr) + end)
        sys.stderr.flush()
    except (OSError, ValueError):
        _drop(sys.stderr)


def put(words: object) -> None:
    """Print lines on stdout and flush."""
    put_bytes(f"{_lines(words, sys.stdout)}\n".encode(_encoding(sys.stdout)))


def put_bytes(content: bytes) -> None:
    """Write bytes to stdout and flush. A closed pipe is a BrokenPipeError."""
    try:
        file = getattr(sys.stdout, "buffer", None)
        if file is None:  # a text without bytes, as tests have
            sys.stdout.write(content.decode())
        else:
            sys.stdout.flush()
            file.write(content)
            file.flush()
    except BrokenPipeError:
        _drop(sys.stdout)
        raise
    except (OSError, ValueError) as error:
        _drop(sys.stdout)
        reason = getattr(error, "strerror", None) or error
        raise StdoutError(f"cannot write to stdout: {reason}") from error


def plain(value: object) -> str:
    """One line without control characters: names may hold escape codes."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(value))


def _lines(words: object, stream: IO[Any]) -> str:
    text = "\n".join(plain(line) for line in str(words).split("\n"))
    return text.encode(_encoding(stream), "backslashreplace").decode(_encoding(stream))


def _encoding(stream: IO[Any]) -> str:
    return getattr(stream, "encoding", None) or "utf-8"


def _drop(stream: IO[Any]) -> None:
    """Redirect a broken stream to /dev/null, or Python flushes it again at exit and complains."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
