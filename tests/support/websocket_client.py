"""A WebSocket client for tests: sends JSON, receives JSON and bytes, always with a time limit."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.support.serving import Running

LIMIT_S = 60.0  # generous, for a busy machine
OMNI = "/v1/audio/speech/stream"
Message = dict[str, Any] | bytes


class SocketClient:
    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def send(self, type: str | None = None, **fields: Any) -> None:
        self.send_raw(json.dumps({**({} if type is None else {"type": type}), **fields}))

    def send_raw(self, message: str | bytes) -> None:
        """Send a message. `read` reports a connection that the server has closed."""
        with suppress(ConnectionClosed):
            self.socket.send(message)

    def read(self, limit_s: float = LIMIT_S) -> Message:
        got = self.socket.recv(limit_s)
        return got if isinstance(got, bytes) else json.loads(got)

    def until(self, type: str) -> list[Message]:
        """All messages up to and including the first one of that type."""
        messages = [self.read()]
        while not (isinstance(messages[-1], dict) and messages[-1].get("type") == type):
            messages.append(self.read())
        return messages

    def speak(self, *pieces: str, **context: str) -> list[Message]:
        """Speak one utterance with vLLM-Omni's messages."""
        for piece in pieces:
            self.send("input.text", text=piece, **context)
        self.send("input.done", **context)
        return self.until("session.done")

    def until_closed(self) -> tuple[list[Message], int]:
        """The remaining messages, and the server's close code."""
        messages = []
        try:
            while True:
                messages.append(self.read())
        except ConnectionClosed as closed:
            return messages, 1006 if closed.rcvd is None else closed.rcvd.code


@contextmanager
def connected(server: Running, path: str = OMNI, **options: Any) -> Iterator[SocketClient]:
    url = f"ws{server.url.removeprefix('http')}{path}"
    options = {"open_timeout": LIMIT_S, "close_timeout": LIMIT_S, **options}
    with connect(url, **options) as socket:
        yield SocketClient(socket)


@contextmanager
def unfinished_speech(url: str, sentence: str, **options: Any) -> Iterator[SocketClient]:
    """Live text without an end, after its first audio: the stream runs until `finish_speech`."""
    with connect(f"ws{url.removeprefix('http')}{OMNI}", close_timeout=LIMIT_S, **options) as socket:
        talk = SocketClient(socket)
        talk.send("session.config", response_format="pcm", seed=5, live="word")
        talk.send("input.text", text=f"{sentence} And ")
        while not isinstance(talk.read(), bytes):
            pass
        yield talk


def finish_speech(talk: SocketClient) -> bytes:
    """The rest of the audio."""
    return audio(talk.speak("so on."))


def audio(messages: list[Message]) -> bytes:
    return b"".join(message for message in messages if isinstance(message, bytes))


def types(messages: list[Message]) -> list[str]:
    """The types of messages. A run of audio is one `bytes`."""
    found: list[str] = []
    for message in messages:
        kind = "bytes" if isinstance(message, bytes) else message["type"]
        if kind != "bytes" or found[-1:] != ["bytes"]:
            found.append(kind)
    return found


def wait_until(is_true: Callable[[], bool], limit_s: float = LIMIT_S) -> float:
    """Wait for a condition and return the seconds that it took."""
    began = time.monotonic()
    while not is_true():
        assert time.monotonic() - began < limit_s, "it did not come true"
        time.sleep(0.002)
    return time.monotonic() - began
