"""Checks the types of arguments, so that a wrong one raises an error of Vivace that names it."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from vivace.errors import RequestError, TTSError
from vivace.speech import shown


def as_path(name: str, value: object, error: type[TTSError] = RequestError) -> Path:
    """Convert a path-like argument to a Path. Values of other types raise `error`."""
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str):
        raise error(f"{name} must be a path, not {shown(value)}")
    return Path(path)


def check_choice(
    name: str, value: object, known: Collection[str], *, may_be_none: bool = False
) -> None:
    """Raise RequestError unless the value is one of the `known` names."""
    if may_be_none and value is None:
        return
    if not isinstance(value, str) or value not in known:
        raise RequestError(f"{name} must be one of {', '.join(known)}, not {shown(value)}")


def check_flag(name: str, value: object) -> None:
    """Raise RequestError unless the value is True, False, 1 or 0, of Python or of NumPy.

    Other values, such as the string "false", would be taken as true without notice.
    """
    if value is True or value is False:
        return
    is_flag = type(value).__name__ in ("bool", "bool_") or (type(value) is int and value in (0, 1))
    if not is_flag:
        raise RequestError(f"{name} must be True or False, not {shown(value)}")
