"""Reads the text files of a checkpoint. Pipes, devices and huge files raise CheckpointError."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from vivace.errors import CheckpointError

MAX_BYTES = 16 << 20  # the largest released file, vocab.json, has 2.8 MB
MAX_DIGITS = 100  # of an integer; smaller invalid integers are reported with their field


def read_text(path: Path) -> str:
    try:
        return _read_bytes(path).decode("utf-8").replace("\r\n", "\n")
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    text = read_text(path)
    try:
        value = json.loads(text, parse_int=_parse_int)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} should hold a JSON object, not a {type(value).__name__}")
    return value


def _read_bytes(path: Path) -> bytes:
    # Without O_NONBLOCK, opening a pipe without a writer would block for ever.
    descriptor = os.open(path, os.O_RDONLY | _flag("O_NONBLOCK") | _flag("O_BINARY"))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
    return content


def _flag(name: str) -> int:
    """A flag of os.open, or 0 if the system does not have it."""
    return int(getattr(os, name, 0))


def _parse_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"the number {digits[:MAX_DIGITS]}… has {len(digits):,} digits")
    return int(digits)
