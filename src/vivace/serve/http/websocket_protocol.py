"""uvicorn's WebSocket protocol with a send timeout, limits on messages and errors as JSON."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Response
from websockets.typing import StatusLike

from vivace.serve.errors import Failure
from vivace.serve.http.middleware import new_request_id
from vivace.serve.http.protocol import CLOSE_TIMEOUT_S, SendTimeout, error_response
from vivace.serve.peers import PeerConnections
from vivace.serve.settings import ServeSettings

NOT_UTF8, TOO_BIG = 1007, 1009  # close codes
MAX_FRAGMENTS = 1_024  # of one message
MAX_PONG_BYTES = 256 * 1024  # unsent bytes above which pings are not answered


class TimedWebSocket(SendTimeout, WebSocketsSansIOProtocol):
    is_refused = False  # the peer sent an invalid message; later data is ignored

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reject = self.conn.reject
        self.conn.reject = self._refuse_handshake  # type: ignore[method-assign]

    def _refuse_handshake(self, status: StatusLike, text: str) -> Response:
        """Replace the library's refusal by JSON; the application sends its own refusals."""
        failure = Failure(int(status), " ".join(text.split()), "invalid_handshake")
        response = self._reject(status, json.dumps(failure.body))
        response.headers["x-request-id"] = new_request_id({})
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
                self.conn.events = [event]  # uvicorn would continue after a refusal
                super().handle_events()

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= MAX_FRAGMENTS:
            self._refuse(TOO_BIG, f"a message has at most {MAX_FRAGMENTS:,} fragments")
        else:
            super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text" and not _is_utf8(b"".join(self.frames)):
            self._refuse(NOT_UTF8, "text must be UTF-8")  # uvicorn would log a traceback
        else:
            super().send_receive_event_to_app()

    def handle_ping(self) -> None:
        pongs = self.conn.data_to_send()
        if self.transport.get_write_buffer_size() < MAX_PONG_BYTES:
            self.transport.write(b"".join(pongs))

    def _refuse_request(self) -> None:
        """Refuse an invalid handshake, such as one with a body. uvicorn would leave it open."""
        failure = Failure(400, "the request is not a valid WebSocket handshake", "invalid_http")
        self.transport.write(error_response(failure))
        self._end(self.transport.abort)

    def _refuse(self, code: int, reason: str) -> None:
        self.frames = []
        self.conn.send_close(code, reason)
        self.handle_parser_exception()

    def handle_parser_exception(self) -> None:
        """Send the close frame, then end. uvicorn would reset the connection and lose the frame."""
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
        self.close_timer = self.loop.call_later(CLOSE_TIMEOUT_S, close)


def websocket_protocol(
    settings: ServeSettings, num_open: Counter[str], peers: PeerConnections | None = None
) -> type[asyncio.Protocol]:
    """Return the protocol class, bound to the settings and the shared connection counts."""
    bound = {"settings": settings, "num_open": num_open, "peers": peers}
    return type("Bound", (TimedWebSocket,), bound)


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
