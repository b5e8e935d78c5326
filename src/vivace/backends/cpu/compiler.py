"""Finds the C++ compiler of this machine."""

from __future__ import annotations

import os
import shlex
import shutil

from vivace.errors import BackendUnavailableError

COMPILERS = ("c++", "g++", "clang++")


def has_compiler() -> bool:
    """Whether this machine has a C++ compiler."""
    try:
        find_compiler()
    except BackendUnavailableError:
        return False
    return True


def find_compiler() -> str:
    """A command: the program with its path, and the options of CXX."""
    named = os.environ.get("CXX")
    for command in (named,) if named else COMPILERS:
        found = _find_command(command)
        if found is not None:
            return found
    if named:
        raise BackendUnavailableError(f"CXX is {named!r}, which is not a program")
    raise BackendUnavailableError(
        "there is no C++ compiler (c++, g++ or clang++); install one, for example g++"
    )


def _find_command(command: str) -> str | None:
    """The command with the path of its program, or None. The path may have spaces."""
    if (path := shutil.which(command)) is not None:
        return shlex.quote(path)
    try:
        program, *options = shlex.split(command)
    except ValueError:  # an open quotation mark, or no word
        return None
    path = shutil.which(program)
    return None if path is None else shlex.join((path, *options))
