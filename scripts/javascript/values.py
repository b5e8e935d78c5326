"""Constants of Python modules as JavaScript."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from types import FunctionType
from typing import Any

from javascript.errors import UnsupportedError
from javascript.regex import translate

NameOf = Callable[[Any], str]  # the name of a function or class in the bundle


def write_constant(value: object) -> str:
    """A number, a string, a truth value or None."""
    written = json.dumps(value, ensure_ascii=False)
    return re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", written)


def write_value(value: object, name_of: NameOf) -> str:
    """An expression for a value that a module computed when it was imported."""

    def write(one: object) -> str:
        return write_value(one, name_of)

    if value is None or isinstance(value, (bool, int, float, str)):
        return write_constant(value)
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(write, value))}]"
    if isinstance(value, (set, frozenset)):
        return f"new Set([{', '.join(sorted(map(write, value)))}])"
    if isinstance(value, Mapping):
        return (
            f"new Map([{', '.join(f'[{write(key)}, {write(one)}]' for key, one in value.items())}])"
        )
    if isinstance(value, re.Pattern):
        return f"new $py.Pattern({write_constant(translate(value))})"
    if isinstance(value, (FunctionType, type)) or hasattr(value, "__wrapped__"):
        return name_of(value)
    if is_dataclass(value):
        parts = (f"{one.name}: {write(getattr(value, one.name))}" for one in fields(value))
        return f"$py.instance({name_of(type(value))}, {{{', '.join(parts)}}})"
    raise UnsupportedError(f"a {type(value).__name__} cannot be written: {value!r:.80}")
