"""The `vivace` command: parses the arguments, then imports what the command needs.

Messages go to stderr, audio to its output; an error is one line and exit code 1.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import vivace.cli.clock  # noqa: F401  it begins to count here
from vivace.cli.command import UsageError
from vivace.cli.parser import build_parser
from vivace.cli.signals import Terminated, orderly_end
from vivace.cli.streams import (
    STDOUT_PATHS,
    StdoutError,
    is_terminal_stdin,
    settle_streams,
    tell,
)
from vivace.errors import TTSError

ROOT_OPTIONS = ("-h", "--help", "--version")
NAMED_ELSEWHERE = {"custom": "say", "speak": "say", "server": "serve", "help": "--help"}
TEXT_FILES = (".txt", ".md", ".markdown", ".rst")
FAILED, WRONG_USE = 1, 2
SIGNALLED = 128  # plus the number of the signal
PIPE_CLOSED = SIGNALLED + 13


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser, commands = build_parser()
    if not argv and is_terminal_stdin():
        parser.print_help()
        parser.exit()
    if not argv or argv[0] not in (*commands, *ROOT_OPTIONS):
        if argv and (meant := _near_miss(argv[0], commands)):
            parser.error(
                f"there is no command {argv[0]!r}; did you mean `vivace {meant}`? "
                f"`vivace say {argv[0]}` says the word"
            )
        if argv and _is_text_file(argv[0]):
            is_there = "is a file" if os.path.isfile(argv[0]) else "looks like a file"
            parser.error(
                f"{argv[0]} {is_there}; did you mean its text, `vivace - < {argv[0]}`? "
                f"`vivace say {argv[0]}` says its name"
            )
        argv = ["say", *argv]
    arguments, rest = parser.parse_known_args(argv)
    # argparse fills every optional place at the first text; a second may come after options.
    if len(rest) == 1 and not rest[0].startswith("-") and getattr(arguments, "text", "") is None:
        arguments.text = rest.pop()
    if rest:
        words = [word for word in rest if not word.startswith("-")]
        text = " ".join([arguments.text or "", *words]) if hasattr(arguments, "text") else ""
        hint = (
            f'; put a text of several words in quotes: "{text}"' if text and words == rest else ""
        )
        hint = hint or suggest_options(rest, arguments.options)
        arguments.fail(f"unrecognized arguments: {' '.join(rest)}{hint}")
    return arguments


def suggest_options(words: Sequence[str], known: Sequence[str]) -> str:
    """The options that unknown ones look like."""
    names = [word.partition("=")[0] for word in words if word.startswith("--")]
    near = [found[0] for name in names if (found := difflib.get_close_matches(name, known, 1))]
    return f"; did you mean {', '.join(dict.fromkeys(near))}?" if near else ""


def _is_text_file(word: str) -> bool:
    if word.startswith("-") or " " in word.strip():
        return False
    return word.lower().endswith(TEXT_FILES) or ("." in word and os.path.isfile(word))


def _near_miss(word: str, commands: Sequence[str]) -> str | None:
    """The command that a single word looks like, or None if it is text to speak."""
    if not word.isalpha():
        return None
    close = difflib.get_close_matches(word.lower(), commands, n=1, cutoff=0.75)
    return close[0] if close else NAMED_ELSEWHERE.get(word.lower())


def _run(argv: Sequence[str]) -> int:
    try:
        arguments = parse(argv)
        module, function = arguments.work.split(":")
        code: int | None = getattr(import_module(f"vivace.cli.{module}"), function)(arguments)
        return code or 0
    except UsageError as error:
        if not _wants_json(argv):
            tell(error.usage.rstrip("\n"))
        _print_error(error, argv)
        raise SystemExit(WRONG_USE) from None
    except TTSError as error:
        _print_error(error, argv)
        return FAILED
    except KeyboardInterrupt as error:
        _print_error(
            error if isinstance(error, Terminated) else KeyboardInterrupt("interrupted"), argv
        )
        return SIGNALLED + getattr(error, "number", signal.SIGINT)
    except BrokenPipeError:
        return PIPE_CLOSED


def _print_error(error: BaseException, argv: Sequence[str]) -> None:
    from vivace.cli.messages import print_error  # help does without it

    is_json = _wants_json(argv) and not isinstance(error, StdoutError)
    with contextlib.suppress(StdoutError, OSError):  # the streams are closed
        print_error(error, is_json=is_json, on_stderr=bool(set(STDOUT_PATHS) & set(argv)))


def _wants_json(argv: Sequence[str]) -> bool:
    return "--json" in argv and "bench" not in argv[:1]  # there it names a file


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and give its exit code; what cannot be parsed is a SystemExit, as help is."""
    settle_streams()
    with orderly_end():
        return _run(sys.argv[1:] if argv is None else argv)


def run() -> NoReturn:
    """`main` as a program, without torch's shutdown, which takes half a second for nothing."""
    code = main()
    import logging  # which help does without

    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
