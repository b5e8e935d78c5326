"""The `vivace` command: parse, then import what the command needs.

Words go to stderr, audio to where it was asked for; an error is one line and exit code 1.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from vivace.cli.parser import build_parser
from vivace.cli.text import is_terminal_stdin
from vivace.cli.words import print_error
from vivace.errors import TTSError

ROOT_OPTIONS = ("-h", "--help", "--version")
NAMED_ELSEWHERE = {"custom": "say", "speak": "say", "serve": "repl", "help": "--help"}
INTERRUPTED, PIPE_CLOSED = 130, 141  # 128 and the signal that ends other programs then


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
        argv = ["say", *argv]
    arguments, rest = parser.parse_known_args(argv)
    # argparse fills every optional place at the first text; a second may come after options.
    if len(rest) == 1 and not rest[0].startswith("-") and getattr(arguments, "text", "") is None:
        arguments.text = rest.pop()
    if rest:
        arguments.fail(f"unrecognized arguments: {' '.join(rest)}")
    return arguments


def _near_miss(word: str, commands: Sequence[str]) -> str | None:
    """The command that a bare word was meant to be; anything else is a text."""
    if not word.isalpha():
        return None
    close = difflib.get_close_matches(word.lower(), commands, n=1, cutoff=0.75)
    return close[0] if close else NAMED_ELSEWHERE.get(word.lower())


def _run(arguments: argparse.Namespace) -> None:
    module, function = arguments.work.split(":")
    getattr(import_module(f"vivace.cli.{module}"), function)(arguments)
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(sys.argv[1:] if argv is None else argv)
    try:
        _run(arguments)
    except TTSError as error:
        print_error(error)
        return 1
    except KeyboardInterrupt:
        print("vivace: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _drop_stdout()
        return PIPE_CLOSED
    return 0


def _drop_stdout() -> None:
    """Whoever read it has gone; without this, Python complains once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
