"""Clients of every protocol that disconnect at a chosen point, by FIN or by reset.

A protocol function takes an exchange to a point and returns the function that disconnects.
`PROTOCOLS` lists all of them.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from tests.support.serving import Running
from vivace.serve.http.response import RESET

TIMEOUT_S = 60.0
ENDLESS = 14  # a seed, where a protocol has one
POINTS = ("connected", "begun", "configured", "asked", "waited", "first", "midway", "ended")
MIDWAY = 100_000  # bytes
Words = dict[str, Any]
Leave = Callable[[bool], None]  # by reset, or by FIN


@dataclass(frozen=True)
class Exchange:
    protocol: str
    point: str
    is_reset: bool

    def go(self, server: Running) -> None:
        """Run the exchange. A server that closes first is no failure."""
        with contextlib.suppress(ConnectionError, WebSocketException):
            PROTOCOLS[self.protocol](server, self.point)(self.is_reset)


def every_exchange() -> list[Exchange]:
    return [
        Exchange(protocol, point, is_reset)
        for point in POINTS
        for protocol in PROTOCOLS
        for is_reset in (False, True)
    ]


def run_exchanges(server: Running, exchanges: Sequence[Exchange], at_once: int = 8) -> None:
    """Run the exchanges in `at_once` threads."""
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(lambda exchange: exchange.go(server), exchanges))


def leave(connection: socket.socket, is_reset: bool) -> None:
    """Close the connection by reset or by FIN."""
    with contextlib.suppress(OSError):
        if is_reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        # A reading thread must release the connection before it is closed.
        connection.shutdown(socket.SHUT_RD if is_reset else socket.SHUT_RDWR)
    connection.close()


# -- HTTP ----------------------------------------------------------------------------------------


def enter_http(server: Running, point: str, fields: Words) -> Leave:
    is_endless = point in ("asked", "waited") or (point == "midway" and fields.get("stream", True))
    seed = ENDLESS if is_endless else None
    content = json.dumps({"input": "Hello there.", "seed": seed, **fields}).encode()
    head = b"POST /v1/audio/speech HTTP/1.1\r\nhost: x.localhost\r\nconnection: close\r\n"
    head += b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(content)
    parts = {"connected": b"", "begun": head[:40], "configured": head + content[:-5]}
    connection = socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S)
    try:
        connection.sendall(parts.get(point, head + content))
        if point == "waited":
            time.sleep(0.02)  # an arbitrary point
        elif point in ("first", "midway", "ended"):
            read_bytes(connection, {"first": 1, "midway": MIDWAY}.get(point))
    except BaseException:
        connection.close()
        raise
    return partial(leave, connection)


def read_bytes(connection: socket.socket, most: int | None) -> None:
    """Read `num_bytes` bytes, or to the end."""
    num_bytes = 0
    while (most is None or num_bytes < most) and (part := connection.recv(65_536)):
        num_bytes += len(part)
    assert num_bytes >= (most or 1)


# -- sockets -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SocketProtocol:
    """The messages of a socket client, and the text that marks the end of speech."""

    path: str
    config: Words
    text: Words
    done: tuple[Words, ...]
    last: str  # in the message that ends the speech


TALKS = {
    "omni": SocketProtocol(
        "/v1/audio/speech/stream",
        {"type": "session.config", "response_format": "pcm"},
        {"type": "input.text", "text": "One. Two. Three. "},
        ({"type": "input.done"},),
        '"session.done"',
    ),
    "omni-ahead": SocketProtocol(  # several utterances and a cancellation
        "/v1/audio/speech/stream",
        {"type": "session.config", "response_format": "mp3"},
        {"type": "input.text", "text": "One. Two. Three. "},
        (
            {"type": "input.done"},
            *({"type": "input.text", "text": "More. "}, {"type": "input.done"}) * 2,
            {"type": "input.cancel"},
        ),
        '"audio.cancelled"',
    ),
    "elevenlabs": SocketProtocol(
        "/v1/text-to-speech/alloy/stream-input?output_format=pcm_24000",
        {"text": " "},
        {"text": "One. Two. Three. "},
        ({"text": ""},),
        '"isFinal":true',
    ),
    "realtime": SocketProtocol(
        "/v1/realtime",
        {"type": "session.update", "session": {"type": "realtime"}},
        {
            "type": "conversation.item.create",
            "item": {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "One. Two. Three."}],
            },
        },
        ({"type": "response.create"},),
        '"response.done"',
    ),
}


def enter_socket(server: Running, point: str, talk: SocketProtocol) -> Leave:
    if point == "connected":
        connection = socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S)
        connection.sendall(f"GET {talk.path} HTTP/1.1\r\nhost: x.localhost\r\nupgr".encode())
        return partial(leave, connection)
    opened = connect(
        f"ws://127.0.0.1:{server.port}{talk.path}",
        open_timeout=TIMEOUT_S,
        close_timeout=0.0,
        max_size=None,
        proxy=None,
    ).__enter__()  # left without a close frame
    messages = [talk.config, talk.text, *talk.done]
    num_sent = {"begun": 0, "configured": 1, "waited": 2}  # the last: a text without an end
    try:
        for words in messages[: num_sent.get(point)]:
            opened.send(json.dumps(words))
        if point in ("first", "midway", "ended"):
            read_messages(opened, point, talk.last)
    except BaseException:
        leave_socket(opened, False)
        raise
    return partial(leave_socket, opened)


def leave_socket(opened: ClientConnection, is_reset: bool) -> None:
    """Disconnect without a close frame."""
    leave(opened.socket, is_reset)
    opened.close()


def read_messages(opened: ClientConnection, point: str, last: str) -> None:
    num_bytes = 0
    while True:
        message = opened.recv(TIMEOUT_S)
        num_bytes += len(message)
        text = message if isinstance(message, str) else ""
        if point == "first" or (point == "midway" and num_bytes >= MIDWAY):
            return
        if last in text.replace(" ", ""):
            return


# -- Wyoming -------------------------------------------------------------------------------------


def enter_wyoming(server: Running, point: str) -> Leave:
    """Wyoming events without payload, with streamed text."""
    events = [
        {"type": "synthesize-start", "data": {}},
        {"type": "synthesize-chunk", "data": {"text": "One. Two. Three. "}},
        {"type": "synthesize-stop", "data": {}},
    ]
    lines = [json.dumps(each).encode() + b"\n" for each in events]
    sent = {
        "connected": b"",
        "begun": lines[0][:10],
        "configured": lines[0],
        "waited": b"".join(lines[:2]),
    }
    assert server.server.wyoming_url is not None
    port = int(server.server.wyoming_url.rpartition(":")[2])
    connection = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
    try:
        connection.sendall(sent.get(point, b"".join(lines)))
        if point in ("first", "midway"):
            read_bytes(connection, {"first": 1, "midway": MIDWAY}[point])
        elif point == "ended":
            answer = b""
            while b"synthesize-stopped" not in answer and (part := connection.recv(65_536)):
                answer = answer[-100:] + part
            assert b"synthesize-stopped" in answer
    except BaseException:
        connection.close()
        raise
    return partial(leave, connection)


ClientProtocol = Callable[[Running, str], Leave]
PROTOCOLS: dict[str, ClientProtocol] = {
    "http": partial(enter_http, fields={"response_format": "pcm"}),
    "http-sse": partial(enter_http, fields={"response_format": "opus", "stream_format": "sse"}),
    "http-whole": partial(enter_http, fields={"response_format": "wav", "stream": False}),
    **{name: partial(enter_socket, talk=talk) for name, talk in TALKS.items()},
    **({"wyoming": enter_wyoming} if find_spec("wyoming") else {}),  # an extra
}
