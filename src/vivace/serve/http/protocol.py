"""Shared by the HTTP and the WebSocket protocol: the send timeout and raw error responses.

uvicorn's protocols have no limits on time and connections. `http_protocol.py` and
`websocket_protocol.py` add them; other connections are not affected.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from http import HTTPStatus
from typing import TYPE_CHECKING

from vivace.serve.errors import Failure
from vivace.serve.http.middleware import new_request_id
from vivace.serve.peers import PeerConnections
from vivace.serve.settings import ServeSettings

if sys.platform != "win32":
    import fcntl
    import termios
if TYPE_CHECKING:
    Mixed = asyncio.Protocol
else:
    Mixed = object

NUM_SEND_CHECKS = 30  # in `send_timeout_s`
CLOSE_TIMEOUT_S = 2.0  # for a peer to receive its last response


class SendTimeout(Mixed):
    """Aborts a connection whose peer receives no byte for `send_timeout_s` while data is unsent."""

    settings: ServeSettings
    num_open: Counter[str]  # connections of both protocols by the peer's address
    peers: PeerConnections | None = None  # of the other workers
    client: tuple[str, int] | None
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    _send_timer: asyncio.TimerHandle | None = None
    _min_unsent = 0  # smallest number of unsent bytes so far
    _received_at = 0.0  # loop time at which the peer last received data

    def pause_writing(self) -> None:
        super().pause_writing()
        self._min_unsent, self._received_at = num_unsent(self.transport), self.loop.time()
        self._check_later()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_checking()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_checking()
        if self.client is not None:
            self._uncount_address(self.client[0])
        super().connection_lost(exc)

    def _uncount_address(self, address: str) -> None:
        self.num_open[address] -= 1
        if self.peers is not None:
            self.peers.add(address, -1)
        if not self.num_open[address]:
            del self.num_open[address]

    def _check_later(self) -> None:
        self._stop_checking()
        wait_s = self.settings.send_timeout_s / NUM_SEND_CHECKS
        self._send_timer = self.loop.call_later(wait_s, self._check_sent)

    def _check_sent(self) -> None:
        unsent, now = num_unsent(self.transport), self.loop.time()
        if unsent < self._min_unsent:
            self._min_unsent, self._received_at = unsent, now
        if now - self._received_at >= self.settings.send_timeout_s:
            self.transport.abort()
        else:
            self._check_later()

    def _stop_checking(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None


def error_response(failure: Failure) -> bytes:
    """Return a whole HTTP response, for errors that do not reach the application."""
    body = json.dumps(failure.body).encode()
    request_id = new_request_id({}).encode()
    head = (
        b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
        b"x-request-id: %b\r\nconnection: close\r\n\r\n"
    )
    phrase = HTTPStatus(failure.status).phrase.encode()
    return head % (failure.status, phrase, len(body), request_id) + body


def num_unsent(transport: asyncio.WriteTransport) -> int:
    """Bytes that the peer has not acknowledged.

    Most are in the kernel, which buffers megabytes and accepts no more until a third of them is
    acknowledged. A client that plays audio in real time takes longer than
    `send_timeout_s` for that.
    """
    try:
        num_buffered = transport.get_write_buffer_size()
    except AttributeError:  # asyncio's TLS transport after a second close
        return 0
    connection = transport.get_extra_info("socket")
    if sys.platform == "win32" or connection is None or connection.fileno() < 0:
        return num_buffered
    try:
        queued = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:  # not supported by this socket
        return num_buffered
    return num_buffered + int.from_bytes(queued, sys.byteorder)
