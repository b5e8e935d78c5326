"""Timeouts of clients and free ports for tests on a busy machine."""

from __future__ import annotations

import inspect
import random
import socket
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

CLIENT_TIMEOUT_S = 120.0  # in place of 5 s (httpx) and 10 s (websockets)
FIRST_PORT = 10_000
EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def extend_client_timeouts() -> None:
    """Raise the default timeouts of httpx and of the handshakes of websockets, if installed.

    A machine that runs only the tests of the GPU may have neither.
    """
    if find_spec("httpx"):
        httpx = import_module("httpx")
        default = inspect.signature(httpx.Client).parameters["timeout"].default
        for name in ("connect", "read", "write", "pool"):
            setattr(default, name, CLIENT_TIMEOUT_S)
    if find_spec("websockets"):
        connect = import_module("websockets.sync.client").connect
        connect_async = import_module("websockets.asyncio.client").connect
        for function in (connect, connect_async.__init__):
            assert "open_timeout" in function.__kwdefaults__
            function.__kwdefaults__["open_timeout"] = CLIENT_TIMEOUT_S


def free_port() -> int:
    """A port outside the range from which the kernel chooses ports of other connections."""
    first_ephemeral = int(EPHEMERAL_PORTS.read_text().split()[0]) if EPHEMERAL_PORTS.exists() else 0
    ports = range(FIRST_PORT, first_ephemeral)
    for port in random.SystemRandom().sample(ports, min(100, len(ports))):
        if is_free(port):
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
