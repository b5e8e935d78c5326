"""The names that a function sees, and what is known about the functions that it calls."""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Protocol

_WORDS = """
arguments await case catch class const default delete do enum eval export extends function
instanceof interface let new package private protected public static super switch this throw typeof
var void
"""
RESERVED = frozenset(_WORDS.split())
_SCOPES = (ast.FunctionDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Names(Protocol):
    """The bundle, for its writers."""

    def name_of(self, value: Any) -> str:
        """The name of a function, class or constant of a module."""

    def is_left_out(self, path: str) -> bool:
        """Whether the method at `path` is not written."""

    def methods(self, name: str) -> Sequence[Any]:
        """The functions of all known classes with this name."""


@dataclass(slots=True)
class Scope:
    """The code of one module function or class, while it is written."""

    module: ModuleType
    names: Names
    owner: type | None = None  # the class of a method
    locals: set[str] = field(default_factory=set)
    hoisted: set[str] = field(default_factory=set)  # temporary variables
    self_name: str | None = None  # the first parameter of a method

    def nested(self, added: set[str]) -> Scope:
        """The scope of a function, lambda or comprehension inside."""
        return Scope(
            self.module, self.names, self.owner, self.locals | added, self.hoisted, self.self_name
        )

    def find(self, name: str) -> Any:
        """The value of a module's name; KeyError for a local or unknown name."""
        if name in self.locals:
            raise KeyError(name)
        return vars(self.module)[name]

    def is_builtin(self, name: str) -> bool:
        known = name in self.locals or name in vars(self.module)
        return not known and hasattr(builtins, name)


def identifier(name: str) -> str:
    return f"{name}_" if name in RESERVED else name


def assigned_names(body: Sequence[ast.AST]) -> set[str]:
    """The variables that the statements of a function assign, without its inner functions'."""
    return {name for node in body for name in _assigned(node)}


def _assigned(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef):
        yield node.name
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    if isinstance(node, ast.ExceptHandler) and node.name:
        yield node.name
    is_comprehension = isinstance(node, _SCOPES)
    for child in ast.iter_child_nodes(node):
        if is_comprehension:  # only assignment expressions leave it
            yield from (one.target.id for one in ast.walk(child) if isinstance(one, ast.NamedExpr))
        else:
            yield from _assigned(child)


@dataclass(frozen=True, slots=True)
class Parameters:
    """How a function takes its arguments. Keyword-only ones travel in one object at the end."""

    positional: tuple[str, ...]
    keyword_only: frozenset[str]

    @classmethod
    def of(cls, function: Any, *, is_method: bool = False) -> Parameters:
        known = list(inspect.signature(function).parameters.values())[is_method:]
        return cls(
            tuple(one.name for one in known if one.kind is one.POSITIONAL_OR_KEYWORD),
            frozenset(one.name for one in known if one.kind is one.KEYWORD_ONLY),
        )

    def arrange(self, given: Sequence[str], keywords: Mapping[str, str]) -> list[str]:
        """The arguments in JavaScript."""
        out = list(given)
        named = {name: text for name, text in keywords.items() if name not in self.keyword_only}
        is_spread = any(one.startswith("...") for one in given)  # and fills the positions
        for name in () if is_spread else self.positional[len(given) :]:
            out.append(named.pop(name, "undefined"))
        if named:
            raise KeyError(next(iter(named)))
        only = {name: text for name, text in keywords.items() if name in self.keyword_only}
        if only:
            return [*out, _object(only)]
        while out and out[-1] == "undefined":
            out.pop()
        return out


def _object(fields: Mapping[str, str]) -> str:
    return f"{{{', '.join(f'{name}: {text}' for name, text in fields.items())}}}"


def arrange_unknown(given: Sequence[str], keywords: Mapping[str, str]) -> list[str]:
    """The arguments of a function that only the running program knows."""
    return [*given, _object(keywords)] if keywords else list(given)
