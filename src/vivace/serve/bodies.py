"""Reads a request's JSON strictly: what JSON readers disagree about is refused with a 400.

Depth, number of values, duplicate keys, NUL, lone surrogates, NaN and numbers that no float holds.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from starlette.requests import Request

from vivace.serve.errors import RefusedError

DATA_URI = re.compile(r"data:[^,]{1,200};base64,", re.IGNORECASE)
SCHEME = re.compile(r"\s*[a-z][a-z0-9+.-]{0,20}:", re.IGNORECASE)
BLANKS = re.compile(r"[ \t\r\n]+")
URL_SAFE = str.maketrans("-_", "+/")
MAX_DEPTH = 16
MAX_VALUES = 20_000
MAX_MARKS = 400_000  # quotes, escapes, commas and brackets, in strings too
MAX_DIGITS = 64  # of a number
LARGE_BODY = 65_536  # bytes; what is larger is parsed beside the event loop
STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
NO_MARKS = re.compile(r"[^\[\]{},]+")


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
    content = await request.body()
    if len(content) > LARGE_BODY:
        return await asyncio.to_thread(parse_object, content)
    return parse_object(content)


def parse_object(content: bytes | str) -> dict[str, Any]:
    """A JSON object, of a body or of a socket's message; anything else is a RefusedError."""
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
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise RefusedError(
            f"{param} has a lone surrogate, half of a character", param=param, code="invalid_text"
        ) from None


def _check_structure(text: str) -> None:
    """Before the parser recurses and builds: depth, and the number of values."""
    if sum(map(text.count, '"\\,[{')) > MAX_MARKS:  # base64 has none
        raise RefusedError(f"the JSON has more than {MAX_MARKS:,} marks", code="invalid_json")
    marks = NO_MARKS.sub("", STRING.sub("", text))
    if marks.count(",") + marks.count("[") + marks.count("{") > MAX_VALUES:
        raise RefusedError(f"the JSON has more than {MAX_VALUES:,} values", code="invalid_json")
    depth = 0
    for mark in marks:
        depth += (mark in "[{") - (mark in "]}")
        if depth > MAX_DEPTH:
            raise RefusedError(
                f"the JSON is nested more than {MAX_DEPTH} deep", code="invalid_json"
            )


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = counts.most_common(1)[0][0]
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


# -- recordings ------------------------------------------------------------------------------


def decode_audio(audio: object, max_bytes: int, param: str) -> bytes:
    """The bytes of an upload, of base64 or of a data URI; never those of a path or a URL."""
    if isinstance(audio, str):
        audio = _from_base64(audio, max_bytes, param)
    if not isinstance(audio, bytes):
        raise _refuse_audio(param, f"it is audio, not {type(audio).__name__}")
    if len(audio) > max_bytes:
        raise _audio_too_large(max_bytes, param)
    if not audio:
        raise _refuse_audio(param, "it is empty")
    return audio


def _from_base64(text: str, max_bytes: int, param: str) -> bytes:
    head = DATA_URI.match(text)
    payload = text[head.end() :] if head else text
    if head is None and SCHEME.match(text):
        raise _refuse_audio(
            param,
            "it is the recording itself, as base64 or as data:audio/wav;base64,…; URLs are not "
            "fetched and paths are not opened",
        )
    if len(payload) // 4 * 3 - 2 > max_bytes:
        raise _audio_too_large(max_bytes, param)
    payload = BLANKS.sub("", payload).translate(URL_SAFE).rstrip("=")  # `base64` breaks lines
    try:
        return base64.b64decode(payload + "=" * (-len(payload) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise _refuse_audio(param, f"it is neither base64 nor a data URI: {error}") from error


def _refuse_audio(param: str, reason: str) -> RefusedError:
    return RefusedError(f"{param}: {reason}", param=param, code="invalid_audio")


def _audio_too_large(max_bytes: int, param: str) -> RefusedError:
    return RefusedError(
        f"{param} is larger than {max_bytes:,} bytes",
        status=413,
        param=param,
        code="audio_too_large",
    )
