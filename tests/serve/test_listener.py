"""Listening sockets: the log of connections that cannot be accepted."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Iterator
from functools import partial

import pytest

from vivace.serve.listener import log_accept_errors

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
