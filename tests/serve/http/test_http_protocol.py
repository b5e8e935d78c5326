"""The HTTP protocol with slow clients, on a clock that the tests advance."""

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

from vivace.serve.http.http_protocol import MAX_UNPARSED, STALL_TIMEOUT_S, TimedHTTP, http_protocol
from vivace.serve.http.protocol import NUM_SEND_CHECKS
from vivace.serve.settings import ServeSettings

HEAD = b"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\n"
LONG_HEAD = 16 * 1_024  # bytes that h11 buffers of incomplete headers
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
    """The part of an event loop that the protocol uses before a request is complete."""

    now: float = 100.0
    timers: list[Timer] = field(default_factory=list)  # all timers ever set
    tasks: list[str] = field(default_factory=list)

    def time(self) -> float:
        return self.now

    def call_at(self, due: float, work: Callable[..., None], *arguments: Any) -> Timer:
        self.timers.append(Timer(due, lambda: work(*arguments)))
        return self.timers[-1]

    def call_later(self, seconds: float, work: Callable[..., None], *arguments: Any) -> Timer:
        return self.call_at(self.now + seconds, work, *arguments)

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
    """A client whose data goes to the server's protocol."""

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

        self.protocol.conn.next_event = count

    def send(self, content: bytes) -> None:
        self.protocol.data_received(content)

    @property
    def response(self) -> bytes:
        return b"".join(call.args[0] for call in self.transport.write.call_args_list)


def test_byte_inside_a_header_line_is_not_parsed_and_sets_no_timer() -> None:
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


def test_byte_of_a_body_sets_no_timer() -> None:
    peer = Peer()
    peer.send(HEAD + b"content-length: 5000\r\n\r\n{")
    num_timers = len(peer.clock.timers)
    for _ in range(100):
        peer.clock.advance(0.01)
        peer.send(b"x")
    assert len(peer.clock.timers) == num_timers
    assert len(peer.protocol.cycle.body) == 101


@pytest.mark.parametrize("rest", [b"x-slow: ", b"content-length: 5000\r\n\r\n{"])
def test_slow_upload_is_aborted_at_its_timeout(rest: bytes) -> None:
    limit_s = SETTINGS.body_timeout_s if b"{" in rest else SETTINGS.header_timeout_s
    peer = Peer()
    peer.send(HEAD + rest)
    for _ in range(int(limit_s) - 1):
        peer.clock.advance(1.0)
        peer.send(b"x")
    assert not peer.response
    peer.clock.advance(1.5)
    assert peer.response.startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("rest", [b"x-slow: ", b"content-length: 5000\r\n\r\n{"])
def test_stalled_upload_is_aborted_after_the_stall_timeout(rest: bytes) -> None:
    peer = Peer()
    peer.send(HEAD + rest)
    for _ in range(10):
        peer.clock.advance(0.9 * STALL_TIMEOUT_S)
        peer.send(b"x")
    peer.clock.advance(0.5 * STALL_TIMEOUT_S)  # the timer of an earlier byte expires
    assert not peer.response
    peer.clock.advance(0.6 * STALL_TIMEOUT_S)
    assert peer.response.startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("size", [1, 63, 4_096, 9_000])
def test_endless_header_line_is_refused_at_its_limit(size: int) -> None:
    peer = Peer()
    peer.send(HEAD + b"x-long: ")
    num_sent = len(HEAD) + len(b"x-long: ")
    while not peer.response and num_sent < 2 * LONG_HEAD:
        peer.send(b"x" * size)
        num_sent += size
    assert peer.response.startswith(b"HTTP/1.1 400")
    assert LONG_HEAD < num_sent <= LONG_HEAD + MAX_UNPARSED + 2 * size


def test_request_sent_byte_by_byte_is_served() -> None:
    peer = Peer()
    for number, byte in enumerate(HEAD + b"\r\n"):
        peer.send(bytes([byte]))
        assert peer.clock.tasks == (["run_asgi"] if number == len(HEAD) + 1 else [])


# --- slow readers -------------------------------------------------------------------------------

NUM_FULL_SENDS = 20  # refused sends in a row after which the kernel's buffers are full
NUM_UNSENT = 70_000  # bytes in the transport's buffer
LIMIT_S = 60.0  # on a busy machine


@dataclass
class Reader:
    """A client on a real connection whose buffers are full."""

    peer: Peer = field(default_factory=Peer)

    def __enter__(self) -> Reader:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._theirs = socket.create_connection(listener.getsockname(), LIMIT_S)
            self._ours, _ = listener.accept()
        self._ours.setblocking(False)
        self._fill()
        extra = {"socket": self._ours}
        self.peer.transport.get_extra_info.side_effect = extra.get
        self.peer.transport.get_write_buffer_size.return_value = NUM_UNSENT
        self.peer.protocol.pause_writing()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ours.close()
        self._theirs.close()

    def _fill(self) -> None:
        """Send until the kernel's buffers are full."""
        num_left = NUM_FULL_SENDS
        while num_left:
            try:
                self._ours.send(bytes(65_536))
                num_left = NUM_FULL_SENDS
            except BlockingIOError:
                num_left -= 1
                time.sleep(0.01)

    def receive_some(self) -> None:
        """Receive as little as lets the kernel send more."""
        before, until = num_queued(self._ours), time.monotonic() + LIMIT_S
        while num_queued(self._ours) >= before:
            assert time.monotonic() < until
            assert self._theirs.recv(16_384)

    def check(self) -> None:
        """Let the server check once for unsent bytes."""
        self.peer.clock.advance(SETTINGS.send_timeout_s / NUM_SEND_CHECKS)

    def count_checks(self) -> int:
        """Count checks until the abort, since the kernel last moved a byte."""
        num_checks, before = 0, num_queued(self._ours)
        while not self.is_aborted and num_checks < 2 * NUM_SEND_CHECKS:
            self.check()
            if self.is_aborted:  # the kernel may move a byte after the last check
                return num_checks + 1
            now = num_queued(self._ours)
            num_checks, before = num_checks + 1 if now == before else 0, now
        return num_checks

    @property
    def is_aborted(self) -> bool:
        return bool(self.peer.transport.abort.called)


def num_queued(connection: socket.socket) -> int:
    return int.from_bytes(fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def test_client_that_receives_nothing_is_aborted_at_the_send_timeout() -> None:
    with Reader() as reader:
        assert NUM_SEND_CHECKS - 1 <= reader.count_checks() <= NUM_SEND_CHECKS + 3
        assert reader.is_aborted


def test_client_that_reads_in_real_time_is_not_aborted() -> None:
    with Reader() as reader:
        for _ in range(4):  # the transport's buffer stays full
            for _ in range(NUM_SEND_CHECKS // 2):
                reader.check()
            reader.receive_some()
        assert not reader.is_aborted
        assert reader.count_checks() <= NUM_SEND_CHECKS + 2
        assert reader.is_aborted


def test_client_that_has_received_everything_is_not_checked() -> None:
    with Reader() as reader:
        reader.peer.protocol.resume_writing()
        reader.peer.clock.advance(2 * SETTINGS.send_timeout_s)
        assert not reader.is_aborted
