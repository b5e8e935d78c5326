"""Answers clients that shut down their write side after a request, and detects closed connections.

TCP announces a half-close and a full close with the same segment. A peer that closed fully resets
the connection as soon as bytes arrive. So a connection that waits for its response sends an
interim `100 Continue` once, which every HTTP/1.1 client skips, and checks for the reset.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import h11
from uvicorn.protocols.http.h11_impl import RequestResponseCycle

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol as Mixed
else:
    Mixed = object

PROBE_AFTER_S = 1.0  # after the end of stream; most responses have begun by then
POLL_S = 0.25  # between two checks for a reset
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"


class HalfClose(Mixed):
    """Keeps a connection open after the peer's end of stream until all responses are complete."""

    cycle: RequestResponseCycle
    _eof_timer: asyncio.TimerHandle | None = None
    _ended_at: float | None = None  # loop time of the peer's end of stream
    _is_probed = False

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Return true to keep the connection open, which asyncio's TLS does not support."""
        if self.scheme == "https" or not self._is_answering:
            return None
        self._ended_at = self.loop.time()
        self._check_reset_later()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if self._eof_timer is not None:
            self._eof_timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()  # starts the next pipelined request
        if self._ended_at is not None and not self._is_answering:
            self.transport.close()

    @property
    def _is_answering(self) -> bool:
        """Whether a request is complete and its response is not."""
        is_complete = self.conn.their_state in (h11.DONE, h11.MUST_CLOSE)
        return is_complete and self.cycle is not None and not self.cycle.response_complete

    def _check_reset_later(self) -> None:
        self._eof_timer = self.loop.call_later(POLL_S, self._check_reset)

    def _check_reset(self) -> None:
        if self.transport.is_closing():
            return
        connection = self.transport.get_extra_info("socket")
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
            return
        if self._needs_probe:
            self._is_probed = True
            self.transport.write(INTERIM)
        self._check_reset_later()

    @property
    def _needs_probe(self) -> bool:
        """Whether to send the interim response. HTTP/1.0 has none."""
        assert self._ended_at is not None
        has_waited = self.loop.time() - self._ended_at >= PROBE_AFTER_S
        is_open = not (self._is_probed or self.cycle.response_started)
        return has_waited and is_open and self.scope["http_version"] == "1.1"
