"""Parses JSON strictly: rejects input that JSON parsers read differently or that exhausts them.

Rejected: deep nesting, too many values, duplicate keys, NUL, lone surrogates, NaN, infinity and
numbers that exceed a float.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from starlette.requests import Request

from vivace.serve.errors import RefusedError
from vivace.speech import MAX_SHOWN, shown

MAX_DEPTH = 16
MAX_VALUES = 20_000
MAX_MARKS = 400_000  # quotes, escapes, commas and brackets, in strings too
MAX_DIGITS = 64  # of a number
LARGE_BODY = 65_536  # bytes; larger bodies are parsed in a thread
STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
NO_MARKS = re.compile(r"[^\[\]{},]+")


async def read_json(request: Request) -> dict[str, Any]:
    """The JSON object in a request's body. `http/middleware.py` bounds its size."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if not (
        kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
    ):
        raise RefusedError(
            "the request needs the header content-type: application/json"
            + (f", not {kind[:80]!r}" if kind else "; it has none"),
            code="invalid_content_type",
        )
    return await parse_content(await request.body())


async def parse_content(content: bytes) -> dict[str, Any]:
    """The JSON object in `content`, parsed in a thread if it is large."""
    if len(content) > LARGE_BODY:
        return await asyncio.to_thread(parse_object, content)
    return parse_object(content)


def parse_object(content: bytes | str) -> dict[str, Any]:
    """The JSON object in a body or a socket's message. Raises RefusedError."""
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
        _check_structure(text)
        value = json.loads(
            text,
            object_pairs_hook=_no_duplicates,
            parse_constant=_refuse_constant,
            parse_int=_read_int,
            parse_float=_read_float,
        )
    except UnicodeDecodeError as error:
        raise _invalid(f"the body is not UTF-8: {error.reason}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, RefusedError):
            raise
        raise _invalid(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise _invalid(f"the body must be a JSON object, not {shown(text.strip()[:MAX_SHOWN])}")
    _check_strings(value)
    return value


def check_text(text: str, param: str) -> None:
    """Raise RefusedError for NUL and lone surrogates."""
    what = "a NUL character" if "\0" in text else ""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        what = "a lone surrogate, half of a character"
    if what:
        raise RefusedError(f"{param} contains {what}", param=param, code="invalid_text")


def _invalid(message: str) -> RefusedError:
    return RefusedError(message, code="invalid_json")


def _check_structure(text: str) -> None:
    """Check depth and the number of values before the parser recurses and allocates."""
    if sum(map(text.count, '"\\,[{')) > MAX_MARKS:  # base64 contains none of them
        raise _invalid(f"the JSON has more than {MAX_MARKS:,} quotes, backslashes and commas")
    marks = NO_MARKS.sub("", STRING.sub("", text))
    if marks.count(",") + marks.count("[") + marks.count("{") > MAX_VALUES:
        raise _invalid(f"the JSON has more than {MAX_VALUES:,} values")
    depth = 0
    for mark in marks:
        depth += (mark in "[{") - (mark in "]}")
        if depth > MAX_DEPTH:
            raise _invalid(f"the JSON is nested more than {MAX_DEPTH} deep")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise _invalid(f"the key {twice[:80]!r} occurs twice")
    return result


def _refuse_constant(name: str) -> None:
    raise _invalid(f"{name} is not a JSON number")


def _read_int(digits: str) -> int:
    _check_digits(digits)
    return int(digits)


def _read_float(digits: str) -> float:
    _check_digits(digits)
    number = float(digits)
    if not math.isfinite(number):
        raise _invalid(f"the number {digits[:20]}… is too large")
    return number


def _check_digits(digits: str) -> None:
    if len(digits) > MAX_DIGITS:
        raise _invalid(f"a number has {len(digits):,} digits and the limit is {MAX_DIGITS}")


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
