"""Messages between an engine's process and its clients, over a Unix socket.

A message is a header, the length of its content and its kind, and the content. Most contents are a
JSON object followed by the bytes of arrays. Both sides are processes of one server, so the messages
have no version.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

HEADER = struct.Struct("<IB")  # bytes of the content, kind
LENGTH = struct.Struct("<I")  # of the JSON object
REQUEST = struct.Struct("<III")  # utterance, frames read, frames wanted
READ_BYTES = 1 << 18  # more than the kernel keeps for a Unix socket
MAX_BUFFERS = 512  # of one system call; Linux accepts 1,024

Buffer = bytes | bytearray | memoryview
Array = NDArray[Any]


class Kind(IntEnum):
    SUBMIT = 1
    REQUEST = 2
    EXTEND = 3
    CANCEL = 4
    CALL = 5  # expects a REPLY
    NOTE = 6  # expects none
    UPDATES = 7
    REPLY = 8
    STATE = 9


class Message(NamedTuple):
    kind: Kind
    content: memoryview


class Fields(NamedTuple):
    """The content of most messages."""

    values: dict[str, Any]
    arrays: list[Array]  # read-only views of the message


def pack(kind: Kind, *parts: Buffer) -> list[Buffer]:
    """The buffers of one message."""
    return [HEADER.pack(sum(memoryview(part).nbytes for part in parts), kind), *parts]


def pack_fields(kind: Kind, values: dict[str, Any], arrays: Sequence[Array] = ()) -> list[Buffer]:
    return pack(kind, *field_buffers(values, arrays))


def field_buffers(values: dict[str, Any], arrays: Sequence[Array] = ()) -> list[Buffer]:
    shapes = [(array.dtype.str, array.shape) for array in arrays]
    text = json.dumps([values, shapes]).encode()
    return [LENGTH.pack(len(text)), text, *map(array_bytes, arrays)]


def array_bytes(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def unpack_fields(content: memoryview) -> Fields:
    start = LENGTH.size
    (length,) = LENGTH.unpack_from(content)
    values, shapes = json.loads(bytes(content[start : start + length]))
    start += length
    arrays = []
    for name, shape in shapes:
        kind = np.dtype(name)
        count = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(content, kind, count, start).reshape(shape)
        arrays.append(array.copy())  # aligned, as PyTorch needs it
        start += count * kind.itemsize
    return Fields(values, arrays)


def read_messages(connection: socket.socket) -> Iterator[list[Message]]:
    """The messages of each read, until the other side closes the connection."""
    unread = bytearray()
    while received := _receive(connection):
        unread += received
        messages, end = _split(unread)
        if messages:
            unread = bytearray(memoryview(unread)[end:])  # the messages refer to the old buffer
            yield messages


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(READ_BYTES)
    except OSError:
        return b""


def _split(unread: bytearray) -> tuple[list[Message], int]:
    messages, start = list[Message](), 0
    view = memoryview(unread)
    while len(unread) - start >= HEADER.size:
        length, kind = HEADER.unpack_from(unread, start)
        end = start + HEADER.size + length
        if end > len(unread):
            break
        messages.append(Message(Kind(kind), view[start + HEADER.size : end]))
        start = end
    return messages, start


def send_all(connection: socket.socket, buffers: Sequence[Buffer]) -> None:
    """Send all bytes with few system calls. Blocks while the other side does not read."""
    left = deque(memoryview(one).cast("B") for one in buffers)
    while left:
        num_sent = connection.sendmsg([left[index] for index in range(min(len(left), MAX_BUFFERS))])
        _drop_sent(left, num_sent)


def _drop_sent(left: deque[memoryview], num_sent: int) -> None:
    while left and num_sent >= len(left[0]):
        num_sent -= len(left.popleft())
    if num_sent:
        left[0] = left[0][num_sent:]


class Outbox:
    """Sends small messages from any thread, a finalizer or a signal handler, without blocking.

    The caller sends, as far as the socket accepts the bytes; a thread sends the rest.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._left: deque[memoryview] = deque()
        self._is_sending = threading.Lock()  # never waited for
        self._has_rest = threading.Event()
        self._is_closed = False
        threading.Thread(target=self._send_rest, name="vivace-outbox", daemon=True).start()

    def put(self, buffers: Sequence[Buffer]) -> None:
        """Send the message together with the next one."""
        self._left.append(memoryview(b"".join(buffers)))

    def send(self, buffers: Sequence[Buffer]) -> None:
        self.put(buffers)
        self._flush()

    def close(self) -> None:
        self._is_closed = True
        self._has_rest.set()

    def _flush(self) -> None:
        # A caller that finds the lock taken leaves its message to the holder, which looks again.
        while self._left and not self._is_closed and self._is_sending.acquire(blocking=False):
            try:
                self._send_some(socket.MSG_DONTWAIT)
            except BlockingIOError:
                self._has_rest.set()
                return
            except OSError:
                self._left.clear()  # the reader of the connection notices its end
            finally:
                self._is_sending.release()

    def _send_some(self, flags: int) -> None:
        while self._left:
            part = self._left[0]
            num_sent = self._connection.send(part, flags)
            if num_sent == len(part):
                self._left.popleft()
            else:
                self._left[0] = part[num_sent:]

    def _send_rest(self) -> None:
        while self._has_rest.wait() and not self._is_closed:
            self._has_rest.clear()
            with self._is_sending:
                try:
                    self._send_some(0)
                except OSError:
                    self._left.clear()
            self._flush()
