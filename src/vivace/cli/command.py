"""What the parser of each command is made of."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

from vivace.cli.streams import put

Commands: TypeAlias = "argparse._SubParsersAction[Any]"


class UsageError(Exception):
    """The command line is invalid."""

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message)
        self.usage = usage


class Parser(argparse.ArgumentParser):
    """Argparse that writes through our streams and leaves errors to `main`."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, self.format_usage())

    def _print_message(self, message: str, file: object = None) -> None:
        put(message.rstrip("\n"))


def add_command(
    commands: Commands, name: str, summary: str, usage: str = "", work: str | None = None
) -> argparse.ArgumentParser:
    """A command whose description is its summary; by default `name:name` runs it."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", allow_abbrev=False
    )
    if usage:
        parser.usage = f"{parser.prog} {usage}"
    parser.set_defaults(
        work=work or f"{name}:{name}", fail=parser.error, options=parser._option_string_actions
    )
    return parser


def above_zero(kind: type[int] | type[float]) -> Callable[[str], int | float]:
    def read(text: str) -> int | float:
        try:
            number = kind(text)
        except ValueError:
            number = 0
        if not 0 < number < float("inf"):
            what = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"needs {what} above 0, not {text!r}")
        return number

    return read


def all_above_zero(kind: type[int] | type[float]) -> Callable[[str], list[int | float]]:
    """With commas between them."""
    read_one = above_zero(kind)
    return lambda text: [read_one(part) for part in text.split(",")]
