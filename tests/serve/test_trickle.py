"""What a peer that trickles costs the server, and how long one may take to read.

Against the protocol itself, with a clock that is moved by hand.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import sys
import termios
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import MagicMock

import pytest
import uvicorn
from uvicorn.server import ServerState

from vivace.serve.protocol import MAX_UNPARSED, NUM_LOOKS, STALL_S, TimedHTTP, http_protocol
from vivace.serve.settings import ServeSettings

HEAD = b"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\n"
LONG_HEAD = 16 * 1_024  # what h11 keeps of a request that does not end
SETTINGS = ServeSettings(port=0, header_timeout_s=60.0, body_timeout_s=90.0)


async def application(scope: Any, receive: Any, send: Any) -> None: ...


@dataclass
class Timer:
    due: float
    work: Callable[[], None]
    is_cancelled: bool = False

    def when(self) -> float:
        return self.due

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass
class Clock:
    """As much of a loop as the protocol uses before there is a whole request."""

    now: float = 100.0
    timers: list[Timer] = field(default_factory=list)  # all that were ever set
    tasks: list[str] = field(default_factory=list)

    def time(self) -> float:
        return self.now

    def call_at(self, due: float, work: Callable[..., None], *told: Any) -> Timer:
        self.timers.append(Timer(due, lambda: work(*told)))
        return self.timers[-1]

    def call_later(self, seconds: float, work: Callable[..., None], *told: Any) -> Timer:
        return self.call_at(self.now + seconds, work, *told)

    def create_task(self, work: Any) -> Any:
        self.tasks.append(work.__name__)
        work.close()
        return MagicMock()

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for timer in list(self.timers):
            if not timer.is_cancelled and timer.due <= self.now:
                timer.is_cancelled = True
                timer.work()


@dataclass
class Peer:
    """A connection: what it sends is received by the server's protocol."""

    clock: Clock = field(default_factory=Clock)
    transport: Any = field(default_factory=lambda: MagicMock(spec=asyncio.Transport))
    num_parsed: int = 0

    def __post_init__(self) -> None:
        config = uvicorn.Config(application, lifespan="off", log_config=None)
        config.load()
        make: Any = http_protocol(SETTINGS, Counter())
        self.protocol: TimedHTTP = make(config, ServerState(), {}, _loop=self.clock)
        self.transport.get_extra_info.return_value = None
        self.transport.is_closing.return_value = False
        self.transport.get_protocol.return_value = self.protocol
        self.protocol.connection_made(self.transport)
        parse = self.protocol.conn.next_event

        def count() -> Any:
            self.num_parsed += 1
            return parse()

        self.protocol.conn.next_event = count  # type: ignore[method-assign]

    def send(self, content: bytes) -> None:
        self.protocol.data_received(content)

    @property
    def said(self) -> bytes:
        """What the server has answered."""
        return b"".join(call.args[0] for call in self.transport.write.call_args_list)


def test_a_byte_inside_a_line_of_headers_is_not_parsed_and_sets_no_timer() -> None:
    peer = Peer()
    peer.send(HEAD + b"x-slow: ")
    num_parsed, num_timers = peer.num_parsed, len(peer.clock.timers)
    for _ in range(100):
        peer.clock.advance(0.01)
        peer.send(b"x")
    assert (peer.num_parsed, len(peer.clock.timers)) == (num_parsed, num_timers)
    peer.send(b"\r\n\r\n")
    assert peer.clock.tasks == ["run_asgi"]
    assert dict(peer.protocol.headers)[b"x-slow"] == b"x" * 100


def test_a_byte_of_a_body_sets_no_timer() -> None:
    peer = Peer()
    peer.send(HEAD + b"content-length: 5000\r\n\r\n{")
    num_timers = len(peer.clock.timers)
    for _ in range(100):
        peer.clock.advance(0.01)
        peer.send(b"x")
    assert len(peer.clock.timers) == num_timers
    assert len(peer.protocol.cycle.body) == 101


@pytest.mark.parametrize("rest", [b"x-slow: ", b"content-length: 5000\r\n\r\n{"])
def test_who_trickles_has_the_whole_time_and_no_more(rest: bytes) -> None:
    limit_s = SETTINGS.body_timeout_s if b"{" in rest else SETTINGS.header_timeout_s
    peer = Peer()
    peer.send(HEAD + rest)
    for _ in range(int(limit_s) - 1):
        peer.clock.advance(1.0)
        peer.send(b"x")
    assert not peer.said
    peer.clock.advance(1.5)
    assert peer.said.startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("rest", [b"x-slow: ", b"content-length: 5000\r\n\r\n{"])
def test_who_trickled_and_stops_is_cut_a_stall_after_the_last_byte(rest: bytes) -> None:
    peer = Peer()
    peer.send(HEAD + rest)
    for _ in range(10):
        peer.clock.advance(0.9 * STALL_S)
        peer.send(b"x")
    peer.clock.advance(0.5 * STALL_S)  # the timer of an earlier byte falls due, and is too early
    assert not peer.said
    peer.clock.advance(0.6 * STALL_S)
    assert peer.said.startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("size", [1, 63, 4_096, 9_000])
def test_a_line_that_never_ends_is_refused_at_its_limit(size: int) -> None:
    peer = Peer()
    peer.send(HEAD + b"x-long: ")
    num_sent = len(HEAD) + len(b"x-long: ")
    while not peer.said and num_sent < 2 * LONG_HEAD:
        peer.send(b"x" * size)
        num_sent += size
    assert peer.said.startswith(b"HTTP/1.1 400")
    assert LONG_HEAD < num_sent <= LONG_HEAD + MAX_UNPARSED + 2 * size


def test_the_next_request_of_a_connection_is_heard_from_its_first_byte() -> None:
    peer = Peer()
    for number, byte in enumerate(HEAD + b"\r\n"):
        peer.send(bytes([byte]))
        assert peer.clock.tasks == (["run_asgi"] if number == len(HEAD) + 1 else [])


# --- readers ----------------------------------------------------------------------------------

SETTLED = 20  # looks, one after another, at a kernel that takes no more
NUM_UNSENT = 70_000  # bytes that wait in the transport
LIMIT_S = 60.0  # for the kernel of a busy machine


@dataclass
class Reader:
    """A peer of a real connection whose buffers are full: the server does not write any more."""

    peer: Peer = field(default_factory=Peer)

    def __enter__(self) -> Reader:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._theirs = socket.create_connection(listener.getsockname(), LIMIT_S)
            self._ours, _ = listener.accept()
        self._ours.setblocking(False)
        self._fill()
        told = {"socket": self._ours}
        self.peer.transport.get_extra_info.side_effect = told.get
        self.peer.transport.get_write_buffer_size.return_value = NUM_UNSENT
        self.peer.protocol.pause_writing()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ours.close()
        self._theirs.close()

    def _fill(self) -> None:
        """Until the kernels have moved all that they can."""
        num_left = SETTLED
        while num_left:
            try:
                self._ours.send(bytes(65_536))
                num_left = SETTLED
            except BlockingIOError:
                num_left -= 1
                time.sleep(0.01)

    def take_some(self) -> None:
        """As little as makes room at the peer."""
        before, until = num_queued(self._ours), time.monotonic() + LIMIT_S
        while num_queued(self._ours) >= before:
            assert time.monotonic() < until
            assert self._theirs.recv(16_384)

    def look(self) -> None:
        """Let the server look once more at what the peer has taken."""
        self.peer.clock.advance(SETTINGS.send_timeout_s / NUM_LOOKS)

    def count_looks(self) -> int:
        """Until the peer is cut, since the kernel moved a byte: a busy one may do so late."""
        num_looks, before = 0, num_queued(self._ours)
        while not self.is_cut and num_looks < 2 * NUM_LOOKS:
            self.look()
            now = num_queued(self._ours)
            num_looks, before = num_looks + 1 if now == before else 0, now
        return num_looks

    @property
    def is_cut(self) -> bool:
        return bool(self.peer.transport.abort.called)


def num_queued(connection: socket.socket) -> int:
    return int.from_bytes(fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def test_a_peer_that_takes_nothing_is_cut_in_time() -> None:
    with Reader() as reader:
        assert NUM_LOOKS - 1 <= reader.count_looks() <= NUM_LOOKS + 3
        assert reader.is_cut


def test_a_peer_that_reads_as_it_plays_is_not_cut_while_the_kernel_takes_no_more() -> None:
    with Reader() as reader:
        for _ in range(4):  # the transport's own bytes wait all the time
            for _ in range(NUM_LOOKS // 2):
                reader.look()
            reader.take_some()
        assert not reader.is_cut
        assert reader.count_looks() <= NUM_LOOKS + 2
        assert reader.is_cut


def test_a_peer_that_has_taken_all_is_not_watched_any_more() -> None:
    with Reader() as reader:
        reader.peer.protocol.resume_writing()
        reader.peer.clock.advance(2 * SETTINGS.send_timeout_s)
        assert not reader.is_cut
