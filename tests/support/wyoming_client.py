"""A Wyoming client for tests, based on the `wyoming` package, with a time limit."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from wyoming.event import Event, read_event, write_event

from tests.support.serving import Running

LIMIT_S = 60.0  # on a busy machine


class WyomingClient:
    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._reader = connection.makefile("rb")
        self._writer = connection.makefile("wb")

    def send(self, type: str, **data: Any) -> None:
        """Send an event. `read` reports a connection that the server has closed."""
        with contextlib.suppress(OSError):
            write_event(Event(type, data), self._writer)

    def send_raw(self, content: bytes) -> None:
        with contextlib.suppress(OSError):
            self.socket.sendall(content)

    def read(self) -> Event | None:
        """The next event, or None after the server has closed the connection."""
        try:
            return read_event(self._reader)
        except ConnectionResetError:
            return None

    def until(self, type: str) -> list[Event]:
        """All events up to and including the first one of that type."""
        events: list[Event] = []
        while not events or events[-1].type != type:
            event = self.read()
            assert event is not None, f"the server closed after {types(events)}"
            events.append(event)
        return events

    def until_closed(self) -> list[Event]:
        return list(iter(self.read, None))

    def write_stream(self, *pieces: str, whole: bool = True, **data: Any) -> None:
        """Send a streamed text like Home Assistant: start, chunks, the whole text again, stop."""
        self.send("synthesize-start", **data)
        for piece in pieces:
            self.send("synthesize-chunk", text=piece)
        if whole:
            self.send("synthesize", text="".join(pieces), **data)
        self.send("synthesize-stop")

    def close(self) -> None:
        for file in (self._writer, self._reader, self.socket):
            with contextlib.suppress(OSError):
                file.close()


@contextmanager
def connected(server: Running, *, receive_bytes: int | None = None) -> Iterator[WyomingClient]:
    connection = socket.socket()
    if receive_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.settimeout(LIMIT_S)
    connection.connect(("127.0.0.1", wyoming_port(server)))
    talk = WyomingClient(connection)
    try:
        yield talk
    finally:
        talk.close()


def wyoming_port(server: Running) -> int:
    assert server.server.wyoming_url is not None
    return int(server.server.wyoming_url.rpartition(":")[2])


def types(events: list[Event]) -> list[str]:
    """The types of events. A run of audio chunks is one entry."""
    found: list[str] = []
    for event in events:
        if event.type != "audio-chunk" or found[-1:] != ["audio-chunk"]:
            found.append(event.type)
    return found


def audio(events: list[Event]) -> bytes:
    return b"".join(event.payload or b"" for event in events)


def record_texts(server: Running, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the texts that reach the engine."""
    tts = server.context.models.loaded()[0].tts
    spoken: list[str] = []
    synthesizer = tts.synthesizer
    original = synthesizer.stream_async

    def stream_async(text: str | AsyncIterator[str], options: Any) -> Any:
        number = len(spoken)
        spoken.append(text if isinstance(text, str) else "")

        async def listen() -> AsyncIterator[str]:
            assert not isinstance(text, str)
            async for piece in text:
                spoken[number] += piece
                yield piece

        return original(text if isinstance(text, str) else listen(), options)

    monkeypatch.setattr(synthesizer, "stream_async", stream_async)
    return spoken
