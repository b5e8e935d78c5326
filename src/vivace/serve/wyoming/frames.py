"""Reads and writes Wyoming events: a JSON line, JSON data and a payload, each of limited size.

The reader of the package `wyoming` trusts the lengths that a client declares. This reader checks
them first, and discards payloads, which no event for text-to-speech has.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from wyoming.event import Event
from wyoming.version import __version__ as PROTOCOL

from vivace.serve.errors import RefusedError
from vivace.serve.strict_json import parse_content, parse_object

MAX_HEADER_BYTES = 65_536  # the limit of asyncio's reader, also in the package's clients
MAX_PAYLOAD_BYTES = 2**20  # of ignored events, such as microphone audio
MAX_TYPE_CHARS = 64
SKIP_BYTES = 65_536


async def read_event(reader: asyncio.StreamReader, first: bytes, max_data: int) -> Event | None:
    """The event that begins with the byte `first`. None if the client disconnected inside it."""
    try:
        line = first + await reader.readuntil(b"\n") if first != b"\n" else first
        if len(line) > MAX_HEADER_BYTES:
            raise _line_too_long()
        header = parse_object(line)
        kind, data = header.get("type"), header.get("data") or {}
        if not isinstance(kind, str) or not 0 < len(kind) <= MAX_TYPE_CHARS:
            raise RefusedError(
                f"an event's type must be a string of 1 to {MAX_TYPE_CHARS} characters"
            )
        data_length = _read_length(header, "data_length", max_data)
        payload_length = _read_length(header, "payload_length", MAX_PAYLOAD_BYTES)
        if not isinstance(data, dict):
            raise RefusedError(f"an event's data must be an object, not {type(data).__name__}")
        if data_length:
            data |= await parse_content(await reader.readexactly(data_length))
        while payload_length:
            skipped = await reader.read(min(payload_length, SKIP_BYTES))
            if not skipped:
                return None
            payload_length -= len(skipped)
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError as error:
        raise _line_too_long() from error
    return Event(kind, data)


def _line_too_long() -> RefusedError:
    return RefusedError(
        f"an event's first line may have {MAX_HEADER_BYTES:,} bytes; send data after it",
        code="too_large",
    )


def encode_event(event: Event) -> bytes:
    """The bytes of an event. Its JSON is ASCII, because text may contain lone surrogates."""
    header: dict[str, Any] = {"type": event.type, "version": PROTOCOL}
    data, payload = b"", event.payload or b""
    if event.data:
        data = json.dumps(event.data).encode()
        header["data_length"] = len(data)
    if payload:
        header["payload_length"] = len(payload)
    return b"".join((json.dumps(header).encode(), b"\n", data, payload))


def _read_length(header: dict[str, Any], name: str, most: int) -> int:
    length = header.get(name)
    if length is None:
        return 0
    if not isinstance(length, int) or isinstance(length, bool) or length < 0:
        raise RefusedError(
            f"{name} must be a number of bytes, not {str(length)[:40]!r}", param=name
        )
    if length > most:
        raise RefusedError(
            f"{name} is {length:,} bytes and the limit is {most:,}", param=name, code="too_large"
        )
    return length
