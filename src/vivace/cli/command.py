"""Helpers that build the argument parsers of the commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NoReturn, TypeAlias

from vivace.cli.streams import print_stdout

Commands: TypeAlias = "argparse._SubParsersAction[Any]"


class UsageError(Exception):
    """The command line is invalid."""

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message)
        self.usage = usage


class Parser(argparse.ArgumentParser):
    """An argparse parser that prints through `cli.streams` and raises UsageError."""

    add_late: Callable[[], None] | None = None  # adds options when the command is chosen

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self.add_late is not None:
            self.add_late()
            self.add_late = None
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, self.format_usage())

    def _print_message(self, message: str, file: object = None) -> None:
        print_stdout(message.rstrip("\n"))


def add_command(
    commands: Commands,
    name: str,
    summary: str,
    usage: str = "",
    work: str | None = None,
    add_options: Callable[[Parser], None] | None = None,
) -> Parser:
    """Add a command. `work` is `module:function` in this package, by default `name:name`.

    `add_options` is called when the command is used.
    """
    parser: Parser = commands.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", allow_abbrev=False
    )
    if usage:
        parser.usage = f"{parser.prog} {usage}"
    parser.set_defaults(
        work=work or f"{name}:{name}", fail=parser.error, options=parser._option_string_actions
    )
    if add_options is not None:
        parser.add_late = partial(add_options, parser)
    return parser


def add_option(
    group: argparse._ActionsContainer,
    flags: str,
    metavar: str | None,
    text: str,
    kind: Callable[[str], Any] = str,
    **settings: Any,
) -> None:
    """Add an option with a value, or a switch if `metavar` is None."""
    if metavar is None:
        settings = {"action": "store_true", **settings}
    else:
        settings |= {"metavar": metavar, "type": kind}
    group.add_argument(*flags.split(), help=text, **settings)


def given_options(arguments: argparse.Namespace, flags: Iterable[str]) -> list[str]:
    """The options among `flags` whose value is not their default."""
    actions = {flag: arguments.options[flag] for flag in flags}
    values = {flag: getattr(arguments, action.dest) for flag, action in actions.items()}
    return [flag for flag, action in actions.items() if values[flag] != action.default]


def above_zero(
    kind: type[int] | type[float], most: int | None = None
) -> Callable[[str], int | float]:
    def read(text: str) -> int | float:
        try:
            number = kind(text)
        except ValueError:
            number = 0
        if not 0 < number < float("inf") or number > (most or number):
            expected = "a whole number" if kind is int else "a number"
            limit = "" if most is None else f" and at most {most:,}"
            raise argparse.ArgumentTypeError(f"must be {expected} above 0{limit}, not {text!r}")
        return number

    return read


def all_above_zero(
    kind: type[int] | type[float], most: int | None = None
) -> Callable[[str], list[int | float]]:
    """A converter of comma-separated numbers."""
    read_one = above_zero(kind, most)
    return lambda text: [read_one(part) for part in text.split(",")]


def add_numbers(
    group: argparse._ActionsContainer,
    *rows: tuple[str, Callable[[str], Any], str, float, str],
) -> None:
    """Add options given as (flag, converter, metavar, default, help)."""
    for flag, kind, metavar, default, text in rows:
        add_option(group, flag, metavar, f"{text}; default: {default:g}", kind, default=default)
