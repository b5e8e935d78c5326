"""Errors as values of a message: the class of the error tree, the message and the fields."""

from __future__ import annotations

from typing import Any

from vivace.errors import TTSError


def dump_error(error: BaseException) -> dict[str, Any]:
    """Values that `load_error` turns into an equal error."""
    fields = {name: value for name, value in vars(error).items() if _is_plain(value)}
    return {"class": type(error).__name__, "message": str(error), "fields": fields}


def load_error(values: dict[str, Any]) -> Exception:
    """The error. A class that is not of the tree becomes a RuntimeError."""
    kind = _classes(TTSError).get(values["class"])
    if kind is None:
        return RuntimeError(f"{values['class']}: {values['message']}")
    error = kind.__new__(kind)
    error.args = (values["message"],)
    vars(error).update(values["fields"])
    return error


def _classes(kind: type[TTSError]) -> dict[str, type[TTSError]]:
    """The class and all its subclasses, by name."""
    found = {kind.__name__: kind}
    for one in kind.__subclasses__():
        found |= _classes(one)
    return found


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))
