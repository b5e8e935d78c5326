"""The `vivace` command: parses the arguments, then imports the module of the command.

An error is one line on stderr and exit code 1, or 2 for invalid arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import NoReturn

from vivace.cli.command import UsageError
from vivace.cli.parser import build_parser
from vivace.cli.signals import SIGNAL_EXIT_CODE, raise_on_termination
from vivace.cli.streams import (
    STDOUT_PATHS,
    StdoutError,
    is_terminal_stdin,
    open_closed_streams,
    print_stderr,
)
from vivace.errors import TTSError

ROOT_OPTIONS = ("-h", "--help", "--version")
COMMAND_ALIASES = {"custom": "say", "speak": "say", "server": "serve", "help": "--help"}
TEXT_FILES = (".txt", ".md", ".markdown", ".rst")
FAILED, INVALID_ARGUMENTS = 1, 2  # exit codes
PIPE_CLOSED = SIGNAL_EXIT_CODE + 13
BLAS_THREADS = "OPENBLAS_NUM_THREADS"  # read by OpenBLAS while it is loaded


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser, commands = build_parser()
    if not argv and is_terminal_stdin():
        parser.print_help()
        parser.exit()
    if not argv or argv[0] not in (*commands, *ROOT_OPTIONS):
        if argv and (meant := _near_miss(argv[0], commands)):
            parser.error(
                f"unknown command {argv[0]!r}; did you mean `vivace {meant}`? "
                f"To speak the word, use `vivace say {argv[0]}`"
            )
        if argv and _is_text_file(argv[0]):
            kind = "is a file" if os.path.isfile(argv[0]) else "looks like a file"
            parser.error(
                f"{argv[0]} {kind}; to speak its text, use `vivace - < {argv[0]}`. "
                f"To speak its name, use `vivace say {argv[0]}`"
            )
        argv = ["say", *argv]
    arguments, rest = parser.parse_known_args(argv)
    # argparse fills all optional positionals at once; a second text may follow the options.
    if len(rest) == 1 and not rest[0].startswith("-") and getattr(arguments, "text", "") is None:
        arguments.text = rest.pop()
    if rest:
        words = [word for word in rest if not word.startswith("-")]
        text = " ".join([arguments.text or "", *words]) if hasattr(arguments, "text") else ""
        hint = f'; quote a text of several words: "{text}"' if text and words == rest else ""
        hint = hint or suggest_options(rest, [*arguments.options, *ROOT_OPTIONS])
        arguments.fail(f"unrecognized arguments: {' '.join(rest)}{hint}")
    return arguments


def suggest_options(words: Sequence[str], known: Sequence[str]) -> str:
    """A hint with the known options that are similar to the unknown ones."""
    names = [word.partition("=")[0] for word in words if word.startswith("--")]
    near = [found[0] for name in names if (found := difflib.get_close_matches(name, known, 1))]
    return f"; did you mean {', '.join(dict.fromkeys(near))}?" if near else ""


def _is_text_file(word: str) -> bool:
    if word.startswith("-") or " " in word.strip():
        return False
    return word.lower().endswith(TEXT_FILES) or ("." in word and os.path.isfile(word))


def _near_miss(word: str, commands: Sequence[str]) -> str | None:
    """The command that a word resembles, or None if the word is text to speak."""
    if not word.isalpha():
        return None
    if word.lower() in COMMAND_ALIASES:
        return COMMAND_ALIASES[word.lower()]
    close = difflib.get_close_matches(word.lower(), commands, n=1, cutoff=0.75)
    return close[0] if close else None


def _run(argv: Sequence[str]) -> int:
    try:
        arguments = parse(argv)
        name, function = arguments.work.split(":")
        with _single_blas_thread():
            module = import_module(f"vivace.cli.{name}")
        code: int | None = getattr(module, function)(arguments)
        return code or 0
    except UsageError as error:
        if not _is_json(argv):
            print_stderr(error.usage.rstrip("\n"))
        _print_error(error, argv)
        raise SystemExit(INVALID_ARGUMENTS) from None
    except TTSError as error:
        _print_error(error, argv)
        return FAILED
    except KeyboardInterrupt as error:
        _print_error(error if error.args else KeyboardInterrupt("interrupted"), argv)
        return SIGNAL_EXIT_CODE + getattr(error, "number", signal.SIGINT)
    except BrokenPipeError:
        return PIPE_CLOSED


@contextlib.contextmanager
def _single_blas_thread() -> Iterator[None]:
    """Load NumPy with one BLAS thread, unless the environment names a number.

    OpenBLAS starts a thread per core. Each spins for tens of milliseconds before it sleeps, and no
    command multiplies large NumPy arrays. PyTorch uses a BLAS library and settings of its own.
    """
    if BLAS_THREADS in os.environ:
        yield
        return
    os.environ[BLAS_THREADS] = "1"
    try:
        yield
    finally:
        os.environ.pop(BLAS_THREADS, None)


def _print_error(error: BaseException, argv: Sequence[str]) -> None:
    from vivace.cli.messages import print_error  # not needed for --help

    is_json = _is_json(argv) and not isinstance(error, StdoutError)
    with contextlib.suppress(StdoutError, OSError):  # the streams are closed
        print_error(error, is_json=is_json, on_stderr=bool(set(STDOUT_PATHS) & set(argv)))


def _is_json(argv: Sequence[str]) -> bool:
    takes_file = list(argv[:1]) in (["bench"], ["verify"])  # `--json FILE`
    return "--json" in argv and not takes_file


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. Help and invalid arguments raise SystemExit."""
    open_closed_streams()
    with raise_on_termination():
        return _run(sys.argv[1:] if argv is None else argv)


def run() -> NoReturn:
    """Run `main` and exit without the shutdown of torch, which takes half a second."""
    code = main()
    import logging  # not needed for --help

    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
