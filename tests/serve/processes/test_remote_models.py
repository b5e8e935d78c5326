"""Notes of a worker to the engine's process about its running requests."""

from __future__ import annotations

import socket

import pytest

from vivace.remote.client import EngineLink
from vivace.remote.wire import Message, read_messages, unpack_fields
from vivace.serve.processes.remote_models import LinkHolder, RemoteQuarantine


def methods(messages: list[Message]) -> list[str]:
    return [unpack_fields(message.content).values["method"] for message in messages]


def test_begin_is_sent_with_the_next_message() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        holder = LinkHolder()
        holder.link = EngineLink(ours, lambda state: None, lambda: None)
        holder.link.start()  # its threads end with the connection
        quarantine = RemoteQuarantine(holder)
        quarantine.begin("model", "digest")
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
        quarantine.end("model", "digest")
        theirs.setblocking(True)
        assert methods(next(read_messages(theirs))) == ["begin", "end"]


def test_notes_are_dropped_while_the_engine_is_restarted() -> None:
    holder = LinkHolder()
    quarantine = RemoteQuarantine(holder)
    quarantine.begin("model", "digest")
    assert quarantine.in_flight("model") == {"digest"}
    quarantine.end("model", "digest")
    assert quarantine.in_flight("model") == set()
