"""The error of Python code that cannot be written as JavaScript."""

from __future__ import annotations

import ast


class UnsupportedError(Exception):
    """The code uses a construct that the translation does not support."""

    @classmethod
    def at(cls, node: ast.AST, where: str) -> UnsupportedError:
        place = f"{where}:{getattr(node, 'lineno', '?')}"
        return cls(f"{place}: {type(node).__name__} is not supported: {ast.unparse(node)[:80]}")
