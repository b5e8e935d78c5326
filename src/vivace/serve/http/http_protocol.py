"""uvicorn's HTTP/1.1 protocol with timeouts, connection limits and errors as JSON.

The headers and the body of a request must each arrive within a time limit. WebSockets have no such
limits after the upgrade.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from vivace.serve.errors import Failure
from vivace.serve.http.half_close import HalfClose
from vivace.serve.http.middleware import OVER_LIMIT
from vivace.serve.http.protocol import CLOSE_TIMEOUT_S, SendTimeout, error_response
from vivace.serve.http.response import TRANSPORT
from vivace.serve.peers import PeerConnections
from vivace.serve.settings import ServeSettings

HEALTH_CONNECTIONS = 64  # beyond each limit on connections; served on /health only
STALL_TIMEOUT_S = 4.0  # between two parts of a request
URL = re.compile(rb"https?://([^/?]*)/?(.*)", re.IGNORECASE)
MAX_UNPARSED = 1_024  # bytes of a header line that are buffered before h11 checks their length


class StrictConnection(h11.Connection):
    """Rejects a request with two lengths, and reads a target that is a whole URL.

    A reverse proxy may read two lengths differently. RFC 9112, section 6.1, requires that the
    connection is closed after such a request.
    """

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        event = super().next_event()
        if not isinstance(event, h11.Request):
            return event
        if _has_two_lengths(event):
            raise h11.RemoteProtocolError("transfer-encoding beside content-length or HTTP/1.0")
        url = URL.fullmatch(event.target)
        return event if url is None else _split_url(event, *url.groups())


def _split_url(request: h11.Request, host: bytes, path: bytes) -> h11.Request:
    """The request with the URL's path as target and its host as header (RFC 9112, 3.2.2)."""
    headers = [(b"host", host), *(item for item in request.headers if item[0] != b"host")]
    return h11.Request(
        method=request.method,
        target=b"/" + path,
        headers=headers,
        http_version=request.http_version,
    )


def _has_two_lengths(request: h11.Request) -> bool:
    names = {name for name, _ in request.headers}
    is_old = request.http_version < b"1.1"
    return b"transfer-encoding" in names and (is_old or b"content-length" in names)


class TimedHTTP(HalfClose, SendTimeout, H11Protocol):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = StrictConnection(h11.SERVER)
        self._timer: asyncio.TimerHandle | None = None
        self._awaited = ""  # "headers" or "body" while the deadline runs
        self._until = 0.0  # loop time by which the headers or the body must be complete
        self._stalls_at = math.inf  # loop time by which the next bytes must arrive
        self._num_unparsed = 0  # bytes that h11 has received and not parsed

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # The kernel's send buffer is large enough. With 0 asyncio's TLS would pause forever.
        transport.set_write_buffer_limits(high=1)
        num_all = len(self.connections)
        num_all += 0 if self.peers is None else self.peers.num_elsewhere()
        num_over = max(
            num_all - self.settings.max_connections,
            self._count_address() - self.settings.max_connections_per_address,
        )
        if num_over > HEALTH_CONNECTIONS:
            transport.abort()
        self.app_state = {**self.app_state, TRANSPORT: transport, OVER_LIMIT: num_over > 0}
        self._start_timeout("headers", self.settings.header_timeout_s)

    def _count_address(self) -> int:
        """Count this connection; return the number of connections of the peer's address."""
        if self.client is None:
            return 0
        address = self.client[0]
        self.num_open[address] += 1
        if self.peers is None:
            return self.num_open[address]
        self.peers.add(address, 1)
        return self.num_open[address] + self.peers.num_elsewhere(address)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timeout()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_inside_headers(data):
            self.conn.receive_data(data)
            self._num_unparsed += len(data)
            self._stalls_at = self.loop.time() + STALL_TIMEOUT_S
            return
        self._num_unparsed = 0
        super().data_received(data)
        if self.transport.get_protocol() is self and not self.transport.is_closing():
            self._update_timeout()

    def _is_inside_headers(self, data: bytes) -> bool:
        """Whether `data` cannot complete the headers; parsing it would cost time for each byte."""
        return (
            self._stalls_at != math.inf
            and self._awaited == "headers"
            and b"\n" not in data
            and self._num_unparsed + len(data) <= MAX_UNPARSED
        )

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._stop_timeout()
        super().handle_websocket_upgrade(event)

    def send_400_response(self, msg: str) -> None:
        self._refuse(Failure(400, "the request is not valid HTTP", "invalid_http"))

    def _update_timeout(self) -> None:
        state = self.conn.their_state
        if state is h11.SEND_BODY:
            self._start_timeout("body", self.settings.body_timeout_s, STALL_TIMEOUT_S)
        elif state is h11.IDLE:  # the first bytes of the next request
            self._start_timeout("headers", self.settings.header_timeout_s, STALL_TIMEOUT_S)
        else:
            self._stop_timeout()

    def _start_timeout(self, awaited: str, seconds: float, stall_s: float = math.inf) -> None:
        """Start or extend the timeout. Called for every part, so the timer is rarely replaced."""
        now = self.loop.time()
        if self._awaited != awaited:
            self._stop_timeout()
            self._awaited, self._until = awaited, now + seconds
        self._stalls_at = now + stall_s
        if self._timer is None or self._timer.when() > self._due:
            self._set_timer()

    @property
    def _due(self) -> float:
        return min(self._until, self._stalls_at)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(self._due, self._expire)

    def _stop_timeout(self) -> None:
        self._awaited = ""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        now = self.loop.time()
        if self.flow.read_paused:  # the application does not read at the moment
            self._stalls_at = now + STALL_TIMEOUT_S
        if now < self._due:
            self._set_timer()
            return
        awaited = self._awaited
        self._stop_timeout()
        message = f"the {awaited} of the request did not arrive in time"
        self._refuse(Failure(408, message, "request_timeout"))

    def _refuse(self, failure: Failure) -> None:
        """Send an error unless a response has begun, close, and signal the application to stop.

        The response may be complete before the request is: a body that is too large is refused
        before it arrives. A second response would answer the client's next request.
        """
        cycle = self.cycle
        has_response = cycle is not None and cycle.response_started and not cycle.response_complete
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        if has_response:
            self.transport.abort()
            return
        if not self.transport.is_closing():
            if self.conn.our_state not in (h11.DONE, h11.MUST_CLOSE):
                self.transport.write(error_response(failure))
            self.transport.close()
            self.loop.call_later(CLOSE_TIMEOUT_S, self.transport.abort)


def http_protocol(
    settings: ServeSettings, num_open: Counter[str], peers: PeerConnections | None = None
) -> type[asyncio.Protocol]:
    """Return the protocol class, bound to the settings and the shared connection counts."""
    bound = {"settings": settings, "num_open": num_open, "peers": peers}
    return type("Bound", (TimedHTTP,), bound)
