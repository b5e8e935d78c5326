"""Reads a request's JSON strictly: what JSON readers disagree about is refused with a 400.

Size, depth, duplicate keys, NUL, lone surrogates, NaN and numbers that no float holds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from starlette.requests import Request

from vivace.serve.errors import RefusedError

MAX_DEPTH = 16
MAX_DIGITS = 64  # of a number


async def read_json(request: Request) -> dict[str, Any]:
    """The JSON object of a request's body; its size is bounded by the middleware in guard.py."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if not (
        kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
    ):
        raise RefusedError(
            f"the body is JSON with content-type application/json, not {kind[:80] or 'none'!r}",
            code="invalid_content_type",
        )
    return parse_object(await request.body())


def parse_object(content: bytes | str) -> dict[str, Any]:
    """A JSON object, of a body or of a socket's message; anything else is a RefusedError."""
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
        _check_depth(text)
        value = json.loads(
            text,
            object_pairs_hook=_no_duplicates,
            parse_constant=_refuse_constant,
            parse_int=_read_int,
            parse_float=_read_float,
        )
    except UnicodeDecodeError as error:
        raise RefusedError(f"the body is not UTF-8: {error.reason}", code="invalid_json") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, RefusedError):
            raise
        raise RefusedError(f"the body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise RefusedError(
            f"the body is a JSON object, not {type(value).__name__}", code="invalid_json"
        )
    _check_strings(value)
    return value


def check_text(text: str, param: str) -> None:
    """A RefusedError for what no text has: NUL and lone surrogates."""
    if "\0" in text:
        raise RefusedError(f"{param} has a NUL character", param=param, code="invalid_text")
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise RefusedError(
            f"{param} has a lone surrogate, half of a character", param=param, code="invalid_text"
        )


def _check_depth(text: str) -> None:
    """Before the parser recurses: brackets outside of strings, open at the same time."""
    depth, is_quoted, is_escaped = 0, False, False
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    for char in text:
        if is_escaped:
            is_escaped = False
        elif is_quoted:
            is_escaped = char == "\\"
            is_quoted = char != '"'
        elif char == '"':
            is_quoted = True
        elif char in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise RefusedError(
                    f"the JSON is nested more than {MAX_DEPTH} deep", code="invalid_json"
                )
        elif char in "]}":
            depth -= 1


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RefusedError(f"the key {twice[:80]!r} comes twice", code="invalid_json")
    return result


def _refuse_constant(name: str) -> None:
    raise RefusedError(f"{name} is no JSON number", code="invalid_json")


def _read_int(digits: str) -> int:
    _check_digits(digits)
    return int(digits)


def _read_float(digits: str) -> float:
    _check_digits(digits)
    number = float(digits)
    if not math.isfinite(number):
        raise RefusedError(f"the number {digits[:20]}… is too large", code="invalid_json")
    return number


def _check_digits(digits: str) -> None:
    if len(digits) > MAX_DIGITS:
        raise RefusedError(f"a number has {len(digits):,} digits", code="invalid_json")


def _check_strings(value: Any, name: str = "the body") -> None:
    if isinstance(value, str):
        check_text(value, name)
    elif isinstance(value, dict):
        for key, inner in value.items():
            check_text(key, "a key")
            _check_strings(inner, key)
    elif isinstance(value, Iterable):
        for inner in value:
            _check_strings(inner, name)
