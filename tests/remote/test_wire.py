"""Messages: framing, arrays, errors and a socket that does not accept bytes."""

from __future__ import annotations

import socket
import threading

import numpy as np
import pytest

from vivace.errors import EngineLostError, QueueFullError, TTSError, UnknownVoiceError
from vivace.remote.errors import dump_error, load_error
from vivace.remote.wire import (
    Array,
    Kind,
    Outbox,
    pack,
    pack_fields,
    read_messages,
    send_all,
    unpack_fields,
)
from vivace.serve.errors import RefusedError, describe

LIMIT_S = 30.0


def test_messages_survive_any_division_into_reads() -> None:
    arrays: list[Array] = [np.arange(7, dtype=np.float32), np.zeros((0, 16), np.int64)]
    arrays.append(np.ones((2, 3), np.int8))
    content = b"".join(pack_fields(Kind.CALL, {"text": "größer", "none": None}, arrays))
    content += b"".join(pack(Kind.CANCEL, b"1234"))
    ours, theirs = socket.socketpair()
    with ours, theirs:

        def send() -> None:
            for place in range(0, len(content), 3):
                ours.sendall(content[place : place + 3])
            ours.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=send)
        thread.start()
        messages = [message for found in read_messages(theirs) for message in found]
        thread.join(LIMIT_S)
    assert [message.kind for message in messages] == [Kind.CALL, Kind.CANCEL]
    fields = unpack_fields(messages[0].content)
    assert fields.values == {"text": "größer", "none": None}
    for found, expected in zip(fields.arrays, arrays, strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
        assert found.flags.aligned
    assert bytes(messages[1].content) == b"1234"


def test_send_all_sends_more_buffers_than_one_call_takes() -> None:
    buffers = [bytes([number % 256]) * 700 for number in range(2_000)]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        received = bytearray()

        def receive() -> None:
            while part := theirs.recv(1 << 16):
                received.extend(part)

        thread = threading.Thread(target=receive)
        thread.start()
        send_all(ours, buffers)
        ours.shutdown(socket.SHUT_WR)
        thread.join(LIMIT_S)
    assert bytes(received) == b"".join(buffers)


def test_outbox_never_blocks_and_keeps_the_order() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        outbox = Outbox(ours)
        parts = [number.to_bytes(4, "little") * 4_096 for number in range(200)]
        for part in parts:  # 3 MB: more than the socket holds
            outbox.send([part])
        received = bytearray()
        while len(received) < sum(map(len, parts)):
            received += theirs.recv(1 << 16)
        assert bytes(received) == b"".join(parts)
        outbox.close()


@pytest.mark.parametrize(
    "error",
    [
        QueueFullError(3, 1.5),
        QueueFullError(3, 1.5, 2),
        UnknownVoiceError("x", ["a", "b"]),
        EngineLostError("lost", needs_process=True),
        RefusedError("no", status=409, code="voice_exists", param="name", retry_s=2.0),
    ],
)
def test_error_keeps_class_message_and_fields(error: TTSError) -> None:
    found = load_error(dump_error(error))
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)
    assert describe(found) == describe(error)


def test_error_of_another_class_is_unexpected() -> None:
    found = load_error(dump_error(KeyError("secret")))
    assert type(found) is RuntimeError
    assert describe(found).code == "internal_error"
