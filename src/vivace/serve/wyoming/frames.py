"""Reads and writes Wyoming events: a JSON line, JSON data and a payload, each of limited size.

The reader of the package `wyoming` trusts the lengths that a client declares. This reader checks
them first, and discards payloads, which no event for text-to-speech has.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from pydantic import Field
from wyoming.event import Event
from wyoming.version import __version__ as PROTOCOL

from vivace.serve.errors import RefusedError
from vivace.serve.input.strict_json import parse_content, parse_object
from vivace.serve.input.validation import ClientInput

MAX_HEADER_BYTES = 65_536  # the limit of asyncio's reader, also in the package's clients
MAX_PAYLOAD_BYTES = 2**20  # of ignored events, such as microphone audio
MAX_TYPE_CHARS = 64
SKIP_BYTES = 65_536


class EventHeader(ClientInput):
    type: str = Field(min_length=1, max_length=MAX_TYPE_CHARS)
    data: dict[str, Any] = Field(default_factory=dict)
    data_length: int = Field(0, ge=0)
    payload_length: int = Field(0, ge=0)


async def read_event(reader: asyncio.StreamReader, first: bytes, max_data: int) -> Event | None:
    """The event that begins with the byte `first`. None if the client disconnected inside it."""
    try:
        line = first + await reader.readuntil(b"\n") if first != b"\n" else first
        if len(line) > MAX_HEADER_BYTES:
            raise _line_too_long()
        header = EventHeader.read(parse_object(line))
        _check_length("data_length", header.data_length, max_data)
        _check_length("payload_length", header.payload_length, MAX_PAYLOAD_BYTES)
        data, num_left = header.data, header.payload_length
        if header.data_length:
            data = data | await parse_content(await reader.readexactly(header.data_length))
        while num_left:
            skipped = await reader.read(min(num_left, SKIP_BYTES))
            if not skipped:
                return None
            num_left -= len(skipped)
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError as error:
        raise _line_too_long() from error
    return Event(header.type, data)


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


def _check_length(name: str, length: int, most: int) -> None:
    if length > most:
        raise RefusedError(
            f"{name} is {length:,} bytes and the limit is {most:,}", param=name, code="too_large"
        )
