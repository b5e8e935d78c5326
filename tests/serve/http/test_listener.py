"""Listening sockets: reserved ports, and the log of connections that cannot be accepted."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Iterator
from functools import partial

import pytest

from vivace.errors import RequestError
from vivace.serve.http.listener import Listeners, log_accept_errors
from vivace.serve.settings import ServeSettings

OUT_OF_FILES = {
    "message": "socket.accept() out of system resource",  # asyncio's
    "exception": OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
}


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    log_accept_errors(made)
    yield made
    made.close()


def test_failed_accepts_are_logged_once_without_a_traceback(
    loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(100):
        loop.call_exception_handler(OUT_OF_FILES)
    assert caplog.messages == ["Connections cannot be accepted: Too many open files."]
    assert caplog.records[0].exc_info is None


def test_failed_accepts_are_logged_again_after_the_interval(
    loop: asyncio.AbstractEventLoop,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for time_s in (100.0, 109.9, 110.0):
        monkeypatch.setattr(loop, "time", partial(float, time_s))
        loop.call_exception_handler(OUT_OF_FILES)
    assert len(caplog.records) == 2


def test_other_errors_are_logged_by_asyncio_each_time(
    loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        loop.call_exception_handler({"message": "a task failed", "exception": OSError("lost")})
    assert [record.name for record in caplog.records] == ["asyncio", "asyncio"]
    assert {record.levelno for record in caplog.records} == {logging.ERROR}


def test_reserved_port_refuses_connections_until_the_server_listens() -> None:
    with Listeners.bind(ServeSettings(port=0)) as listeners:
        assert listeners.http is not None
        where = listeners.http.getsockname()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(where)
        listeners.listen()
        socket.create_connection(where).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(where)


def test_second_of_two_servers_that_reserved_a_port_is_refused() -> None:
    with Listeners.bind(ServeSettings(port=0)) as first:
        assert first.http is not None
        port = first.http.getsockname()[1]
        with Listeners.bind(ServeSettings(port=port)) as second:
            first.listen()
            with pytest.raises(RequestError, match=f"cannot listen on 127.0.0.1:{port}"):
                second.listen()


def test_taken_wyoming_port_frees_the_http_port() -> None:
    with Listeners.bind(ServeSettings(port=0)) as taken:
        taken.listen()
        assert taken.http is not None
        wyoming = taken.http.getsockname()[1]
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with pytest.raises(RequestError, match="choose another --wyoming-port"):
            Listeners.bind(ServeSettings(port=port, wyoming_port=wyoming))
        with Listeners.bind(ServeSettings(port=port)) as again:
            again.listen()
