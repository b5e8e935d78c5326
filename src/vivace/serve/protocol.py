"""uvicorn's protocols with what they lack: deadlines, a limit of connections, errors as JSON.

A request's headers and its body have to arrive within a time each, and whoever reads has to take
bytes: a peer that does not is cut, while nobody else notices. A WebSocket has no deadline of
headers and bodies any more.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Response
from websockets.typing import StatusLike

from vivace.serve.errors import Failure
from vivace.serve.guard import CROWDED, new_request_id
from vivace.serve.half_close import HalfClose
from vivace.serve.response import TRANSPORT, num_unsent
from vivace.serve.settings import ServeSettings

if TYPE_CHECKING:
    Mixed = asyncio.Protocol
else:
    Mixed = object

HEALTH_CONNECTIONS = 64  # besides what is allowed, of all and of one address
NOT_UTF8, TOO_BIG = 1007, 1009  # of a close frame
MAX_FRAGMENTS = 1_024  # of one message
MAX_PONG_BYTES = 256 * 1024  # unsent, above which pings are not answered
STALL_S = 4.0  # without a byte of a request that has begun
MAX_UNPARSED = 1_024  # bytes inside a line of headers, until h11 is asked whether they are too many
NUM_LOOKS = 30  # at what a peer has taken, in `send_timeout_s`
CLOSING_S = 2.0  # for a peer to take its last answer


class SendDeadline(Mixed):
    """Aborts a connection whose peer takes no byte for `send_timeout_s` while some wait for it."""

    settings: ServeSettings
    num_open: Counter[str]  # connections by the peer's address, of both protocols
    client: tuple[str, int] | None
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    _send_timer: asyncio.TimerHandle | None = None
    _num_left = 0  # bytes that wait for the peer, the fewest that were seen
    _taken_at = 0.0  # the loop's time at which it was seen to have taken some

    def pause_writing(self) -> None:
        super().pause_writing()
        self._num_left, self._taken_at = num_unsent(self.transport), self.loop.time()
        self._look_later()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_watching()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        if self.client is not None:
            self._leave_address(self.client[0])
        super().connection_lost(exc)

    def _leave_address(self, address: str) -> None:
        self.num_open[address] -= 1
        if not self.num_open[address]:
            del self.num_open[address]

    def _look_later(self) -> None:
        self._stop_watching()
        wait_s = self.settings.send_timeout_s / NUM_LOOKS
        self._send_timer = self.loop.call_later(wait_s, self._check_sent)

    def _check_sent(self) -> None:
        num_left, now = num_unsent(self.transport), self.loop.time()
        if num_left < self._num_left:
            self._num_left, self._taken_at = num_left, now
        if now - self._taken_at >= self.settings.send_timeout_s:
            self.transport.abort()
        else:
            self._look_later()

    def _stop_watching(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None


class StrictConnection(h11.Connection):
    """Refuses a request with two lengths, which a proxy in front may read differently.

    RFC 9112, section 6.1: the connection is closed after such a request.
    """

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        event = super().next_event()
        if isinstance(event, h11.Request) and _has_two_lengths(event):
            raise h11.RemoteProtocolError("transfer-encoding beside content-length or HTTP/1.0")
        return event


def _has_two_lengths(request: h11.Request) -> bool:
    names = {name for name, _ in request.headers}
    is_old = request.http_version < b"1.1"
    return b"transfer-encoding" in names and (is_old or b"content-length" in names)


class TimedHTTP(HalfClose, SendDeadline, H11Protocol):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = StrictConnection(h11.SERVER)
        self._deadline: asyncio.TimerHandle | None = None
        self._awaited = ""  # "headers" or "body" while the deadline runs
        self._until = 0.0  # the loop's time by which all of it has to be there
        self._stalls_at = math.inf  # the loop's time by which its next bytes have to be there
        self._num_unparsed = 0  # bytes that h11 has, and has not looked at

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # The kernel's buffer is large, and enough. With 0 asyncio's TLS would pause for ever.
        transport.set_write_buffer_limits(high=1)
        num_over = max(
            len(self.connections) - self.settings.max_connections,
            self._count_address() - self.settings.max_connections_per_address,
        )
        if num_over > HEALTH_CONNECTIONS:
            transport.abort()
        self.app_state = {**self.app_state, TRANSPORT: transport, CROWDED: num_over > 0}
        self._arm("headers", self.settings.header_timeout_s)

    def _count_address(self) -> int:
        """One more connection of the peer's address; how many there are."""
        if self.client is None:
            return 0
        self.num_open[self.client[0]] += 1
        return self.num_open[self.client[0]]

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_inside_headers(data):
            self.conn.receive_data(data)
            self._num_unparsed += len(data)
            self._stalls_at = self.loop.time() + STALL_S
            return
        self._num_unparsed = 0
        super().data_received(data)
        if self.transport.get_protocol() is self and not self.transport.is_closing():
            self._settle_deadline()

    def _is_inside_headers(self, data: bytes) -> bool:
        """Bytes that end no line end no headers: hundreds of peers may trickle such at once."""
        return (
            self._stalls_at != math.inf
            and self._awaited == "headers"
            and b"\n" not in data
            and self._num_unparsed + len(data) <= MAX_UNPARSED
        )

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._disarm()
        super().handle_websocket_upgrade(event)

    def send_400_response(self, msg: str) -> None:
        self._refuse(Failure(400, "the request is not valid HTTP", "invalid_http"))

    def _settle_deadline(self) -> None:
        state = self.conn.their_state
        if state is h11.SEND_BODY:
            self._arm("body", self.settings.body_timeout_s, STALL_S)
        elif state is h11.IDLE:  # the first bytes of a next request
            self._arm("headers", self.settings.header_timeout_s, STALL_S)
        else:
            self._disarm()

    def _arm(self, awaited: str, seconds: float, stall_s: float = math.inf) -> None:
        """Every piece comes here, so the timer is not set anew unless it would be too late."""
        now = self.loop.time()
        if self._awaited != awaited:
            self._disarm()
            self._awaited, self._until = awaited, now + seconds
        self._stalls_at = now + stall_s
        if self._deadline is None or self._deadline.when() > self._due:
            self._set_timer()

    @property
    def _due(self) -> float:
        return min(self._until, self._stalls_at)

    def _set_timer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_at(self._due, self._expire)

    def _disarm(self) -> None:
        self._awaited = ""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        now = self.loop.time()
        if self.flow.read_paused:  # the application does not read just now
            self._stalls_at = now + STALL_S
        if now < self._due:
            self._set_timer()
            return
        awaited = self._awaited
        self._disarm()
        message = f"the {awaited} of the request did not arrive in time"
        self._refuse(Failure(408, message, "request_timeout"))

    def _refuse(self, failure: Failure) -> None:
        """Answer unless an answer has begun, and close; the application hears a disconnect."""
        cycle = self.cycle
        is_answered = cycle is not None and cycle.response_started and not cycle.response_complete
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        if is_answered:
            self.transport.abort()
            return
        if not self.transport.is_closing():
            self.transport.write(_answer(failure))
            self.transport.close()
            self.loop.call_later(CLOSING_S, self.transport.abort)


def http_protocol(settings: ServeSettings, num_open: Counter[str]) -> type[asyncio.Protocol]:
    """uvicorn's HTTP/1.1 protocol, bound to these settings and counts of connections."""
    return type("Bound", (TimedHTTP,), {"settings": settings, "num_open": num_open})


class TimedWebSocket(SendDeadline, WebSocketsSansIOProtocol):
    is_refused = False  # it sent what is no message; nothing more of it is looked at

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reject = self.conn.reject
        self.conn.reject = self._refuse_handshake  # type: ignore[method-assign]

    def _refuse_handshake(self, status: StatusLike, text: str) -> Response:
        """Of websockets' own; a refusal of ours comes from the application."""
        failure = Failure(int(status), " ".join(text.split()), "invalid_handshake")
        response = self._reject(status, json.dumps(failure.body))
        response.headers["x-request-id"] = new_request_id({"headers": []})
        del response.headers["content-type"]
        response.headers["content-type"] = "application/json"
        return response

    def data_received(self, data: bytes) -> None:
        if self.is_refused:
            return
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self._refuse_request()

    def handle_events(self) -> None:
        for event in self.conn.events_received():
            if not self.is_refused:
                self.conn.events = [event]  # uvicorn would go on after a refusal
                super().handle_events()

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= MAX_FRAGMENTS:
            self._refuse(TOO_BIG, f"a message has at most {MAX_FRAGMENTS:,} fragments")
        else:
            super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text" and not _is_utf8(b"".join(self.frames)):
            self._refuse(NOT_UTF8, "text must be UTF-8")  # uvicorn's way logs a traceback
        else:
            super().send_receive_event_to_app()

    def handle_ping(self) -> None:
        pongs = self.conn.data_to_send()
        if self.transport.get_write_buffer_size() < MAX_PONG_BYTES:  # somebody reads them
            self.transport.write(b"".join(pongs))

    def _refuse_request(self) -> None:
        """Such as one with a body; uvicorn would neither answer it nor close."""
        failure = Failure(400, "the request is no valid WebSocket handshake", "invalid_http")
        self.transport.write(_answer(failure))
        self._end(self.transport.abort)

    def _refuse(self, code: int, reason: str) -> None:
        self.frames = []
        self.conn.send_close(code, reason)
        self.handle_parser_exception()

    def handle_parser_exception(self) -> None:
        """uvicorn would close with bytes unread: a reset, which overtakes the close frame."""
        assert self.conn.close_sent is not None
        code, reason = self.conn.close_sent.code, self.conn.close_sent.reason
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self._end(self.transport.close)

    def _end(self, close: Callable[[], None]) -> None:
        self.close_sent = self.is_refused = True
        self.transport.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.close_timer = self.loop.call_later(CLOSING_S, close)


def socket_protocol(settings: ServeSettings, num_open: Counter[str]) -> type[asyncio.Protocol]:
    """uvicorn's WebSocket protocol, bound to what its HTTP/1.1 protocol is bound to."""
    return type("Bound", (TimedWebSocket,), {"settings": settings, "num_open": num_open})


def _answer(failure: Failure) -> bytes:
    """An answer where there is no application to give it."""
    body = json.dumps(failure.body).encode()
    request_id = new_request_id({"headers": []}).encode()
    head = (
        b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
        b"x-request-id: %b\r\nconnection: close\r\n\r\n"
    )
    phrase = HTTPStatus(failure.status).phrase.encode()
    return head % (failure.status, phrase, len(body), request_id) + body


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
