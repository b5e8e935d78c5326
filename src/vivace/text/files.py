"""Reads UTF-8 text files of limited size; errors name the file and the line."""

from __future__ import annotations

import os

from vivace.errors import TTSError


def read_utf8(path: str | os.PathLike[str], max_bytes: int, error: type[TTSError]) -> str:
    """Return the text of a file; raise `error` if it cannot be read."""
    try:
        with open(path, "rb") as file:
            content = file.read(max_bytes + 1)
    except (OSError, ValueError) as fault:  # ValueError: a null byte in the name
        reason = getattr(fault, "strerror", None) or fault
        raise error(f"{path}: cannot be read: {reason}") from fault
    return decode_utf8(content, str(path), max_bytes, error)


def decode_utf8(
    content: bytes, name: str, max_bytes: int, error: type[TTSError], *, first_line: int = 1
) -> str:
    """Return the text, or raise `error` with the number of the invalid line."""
    if len(content) > max_bytes:
        raise error(f"{name}: larger than {max_bytes:,} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        line = content[: fault.start].count(b"\n") + first_line
        raise error(
            f"{name}, line {line}: not UTF-8: {fault.reason}; save the text as UTF-8"
        ) from fault
