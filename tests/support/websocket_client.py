"""A WebSocket client for tests: JSON out, JSON and bytes in, never without a time limit."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.support.serving import Running

LIMIT_S = 30.0  # on a busy machine
OMNI = "/v1/audio/speech/stream"
Message = dict[str, Any] | bytes


class Talk:
    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def send(self, type: str | None = None, **fields: Any) -> None:
        self.send_raw(json.dumps({**({} if type is None else {"type": type}), **fields}))

    def send_raw(self, message: str | bytes) -> None:
        """Send it, or leave a connection that the server has closed for `read` to report."""
        with suppress(ConnectionClosed):
            self.socket.send(message)

    def read(self, limit_s: float = LIMIT_S) -> Message:
        got = self.socket.recv(limit_s)
        return got if isinstance(got, bytes) else json.loads(got)

    def until(self, type: str) -> list[Message]:
        """All messages up to one of that type, that one included."""
        messages = [self.read()]
        while not (isinstance(messages[-1], dict) and messages[-1].get("type") == type):
            messages.append(self.read())
        return messages

    def speak(self, *pieces: str, **context: str) -> list[Message]:
        """One utterance over vLLM-Omni's messages."""
        for piece in pieces:
            self.send("input.text", text=piece, **context)
        self.send("input.done", **context)
        return self.until("session.done")

    def until_closed(self) -> tuple[list[Message], int]:
        """Whatever still comes, and the code that the server closed with."""
        messages = []
        try:
            while True:
                messages.append(self.read())
        except ConnectionClosed as closed:
            return messages, 1006 if closed.rcvd is None else closed.rcvd.code


@contextmanager
def talking(server: Running, path: str = OMNI, **options: Any) -> Iterator[Talk]:
    url = f"ws{server.url.removeprefix('http')}{path}"
    options = {"open_timeout": LIMIT_S, "close_timeout": LIMIT_S, **options}
    with connect(url, **options) as socket:
        yield Talk(socket)


def audio(messages: list[Message]) -> bytes:
    return b"".join(message for message in messages if isinstance(message, bytes))


def types(messages: list[Message]) -> list[str]:
    """The types of messages, with runs of audio as one `bytes`."""
    found: list[str] = []
    for message in messages:
        kind = "bytes" if isinstance(message, bytes) else message["type"]
        if kind != "bytes" or found[-1:] != ["bytes"]:
            found.append(kind)
    return found


def wait_until(is_true: Callable[[], bool], limit_s: float = LIMIT_S) -> float:
    """Seconds until it was true."""
    began = time.monotonic()
    while not is_true():
        assert time.monotonic() - began < limit_s, "it did not come true"
        time.sleep(0.002)
    return time.monotonic() - began
