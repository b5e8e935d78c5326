"""Collects what an entry point of the package uses, and writes one JavaScript module."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections import defaultdict, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any
from urllib.parse import unquote

from javascript.code import parse, write_class, write_function
from javascript.errors import UnsupportedError
from javascript.scope import Scope
from javascript.values import write_value

# What docs/try/python.js provides.
_PROVIDED = {
    Exception: "Error",
    ValueError: "Error",
    deque: "$py.list",
    replace: "$py.replace",
    unquote: "$py.unquote",
}
_REFERENCE = re.compile(r"\{(vivace[\w.]+)\}")


class Bundle:
    """The functions, classes and constants of one JavaScript module.

    `replaced` gives JavaScript for functions and classes, by `module.name`. `{module.name}` in it
    is the name of another value in the bundle. A method with the text "" is left out.
    """

    def __init__(
        self,
        replaced: Mapping[str, str],
        packages: tuple[str, ...] = ("vivace.text", "vivace.script", "vivace.errors"),
    ) -> None:
        self._replaced, self._packages = replaced, packages
        self._names: dict[Any, str] = {}
        self._kept: list[Any] = []  # values whose `id` is a key of `_names`
        self._functions: list[str] = []
        self._classes: list[str] = []
        self._constants: list[str] = []
        self._waiting: list[tuple[Any, str]] = []
        self._num_modules = 0  # when `_methods` was made
        self._methods: Mapping[str, list[Any]] = {}

    def export(self, paths: Sequence[str]) -> str:
        """The module, with the values at `paths` under their own names."""
        exported = {path.rpartition(".")[2]: self.name_of(_find(path)) for path in paths}
        while self._waiting:
            self._write(*self._waiting.pop())
        parts = [*self._functions, *self._classes, *self._constants]
        names = ", ".join(f"{own} as {name}" for name, own in exported.items())
        return "\n\n".join([*parts, f"export {{ {names} }};"]) + "\n"

    def name_of(self, value: Any) -> str:
        """The name of a function, class or constant; it becomes part of the bundle."""
        value = getattr(value, "__wrapped__", value)  # of `lru_cache`
        if isinstance(value, (bool, int, float, str)) or value is None:
            return write_value(value, self.name_of)
        if isinstance(value, Hashable) and callable(value) and value in _PROVIDED:
            return _PROVIDED[value]
        key = (value.pattern, value.flags) if isinstance(value, re.Pattern) else id(value)
        if key not in self._names:
            self._kept.append(value)
            own = getattr(value, "__name__", "value")
            self._names[key] = f"{own}${len(self._names)}"
            if isinstance(value, type):
                self._write(value, self._names[key])  # a class follows its base
            else:
                self._waiting.append((value, self._names[key]))
        return self._names[key]

    def is_left_out(self, path: str) -> bool:
        return self._replaced.get(path) == ""

    def methods(self, name: str) -> Sequence[Any]:
        """The functions with this name of all classes of the package's text modules."""
        if len(sys.modules) != self._num_modules:  # a module was imported
            found = defaultdict(list)
            for kind in self._find_classes():
                for own, value in vars(kind).items():
                    if inspect.isfunction(value):
                        found[own].append(value)
            self._num_modules, self._methods = len(sys.modules), found
        return self._methods.get(name, [])

    def _find_classes(self) -> list[type]:
        modules = [one for name, one in sys.modules.items() if name.startswith(self._packages)]
        return [
            one
            for module in modules
            for one in vars(module).values()
            if isinstance(one, type) and one.__module__ == module.__name__
        ]

    def _write(self, value: Any, name: str) -> None:
        path = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
        if path in self._replaced:
            own = _REFERENCE.sub(lambda one: self.name_of(_find(one[1])), self._replaced[path])
            parts = self._classes if isinstance(value, type) else self._constants
            parts.append(f"const {name} = {own};")
        elif inspect.isfunction(value) or isinstance(value, type):
            self._write_code(value, name)
        else:
            self._constants.append(f"const {name} = {write_value(value, self.name_of)};")

    def _write_code(self, value: Any, name: str) -> None:
        if not value.__module__.startswith("vivace"):
            raise UnsupportedError(f"{value.__module__}.{value.__qualname__} is not supported")
        scope, node = Scope(sys.modules[value.__module__], self), parse(value)
        if isinstance(node, ast.FunctionDef):
            self._functions.append(write_function(node, scope, name))
            return
        scope.owner = value
        base = value.__bases__[0]
        written = "" if base is object else self.name_of(base)
        self._classes.append(write_class(node, value, scope, name, written))


def _find(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)
