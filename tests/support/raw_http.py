"""Sends raw bytes to a server, for requests that no regular client would send."""

from __future__ import annotations

import contextlib
import socket
import time

LIMIT_S = 60.0  # generous: tests of speed compare with a control


def talk(port: int, request: bytes, limit_s: float = LIMIT_S) -> bytes:
    """Send the bytes and read until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), limit_s) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(request)
        return read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65_536):
            answer += part
    return answer


def seconds_until_closed(connection: socket.socket, began: float) -> float:
    read_all(connection)
    return time.monotonic() - began
