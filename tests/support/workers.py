"""Runs `vivace serve --workers N` and finds its processes and the worker of a connection."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from tests.support.served_process import LIMIT_S, ServedProcess
from vivace.serve.processes.control import ENGINE

HEADER_LINES = 1  # of /proc/net/tcp


class WorkerServer(ServedProcess):
    @property
    def children(self) -> list[int]:
        """Process ids: the engine's and the workers'."""
        process_id = self.process.pid
        listed = Path(f"/proc/{process_id}/task/{process_id}/children").read_text()
        return [int(one) for one in listed.split()]

    @property
    def engine(self) -> int:
        """The process that listens on the Unix socket of the engine."""
        assert self.url  # all processes have been started
        listening = _listening_inodes(ENGINE)
        return next(one for one in self.children if _socket_inodes(one) & listening)

    def worker_of(self, client_port: int) -> int:
        """The process that serves the connection from this port."""
        inode = _inode(int(self.url.rpartition(":")[2]), client_port)
        return next(one for one in self.children if inode in _socket_inodes(one))

    def metric(self, name: str, *, missing: float | None = None) -> float:
        """The sum of a metric's series whose name begins with `name`; `missing` without any."""
        text = httpx.get(f"{self.url}/metrics", timeout=LIMIT_S).text
        values = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(name)]
        if not values:
            assert missing is not None, name
            return missing
        return sum(map(float, values))


def _inode(server_port: int, client_port: int) -> str:
    for line in Path("/proc/net/tcp").read_text().splitlines()[HEADER_LINES:]:
        fields = line.split()
        ports = [int(place.rpartition(":")[2], 16) for place in fields[1:3]]
        if ports == [server_port, client_port]:
            return fields[9]
    raise AssertionError(f"no connection from port {client_port}")


def _listening_inodes(name: str) -> set[str]:
    """Unix sockets at a path that ends with `name`."""
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    return {row[6] for row in rows if len(row) > 7 and row[7].endswith(f"/{name}")}


def _socket_inodes(process_id: int) -> set[str]:
    inodes = set()
    for file in Path(f"/proc/{process_id}/fd").iterdir():
        with suppress(OSError):  # just closed
            inodes.add(os.readlink(file).removeprefix("socket:[").removesuffix("]"))
    return inodes


def get_status(url: str) -> int:
    """The status of a response; 0 from a worker that has just stopped."""
    try:
        return httpx.get(url, timeout=LIMIT_S).status_code
    except httpx.TransportError:
        return 0


def wait_for(is_met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_met():
        assert time.monotonic() < deadline
        time.sleep(0.1)  # most conditions send a request


def is_running(process_id: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2][:3]
    except OSError:
        return False


@contextmanager
def workers(*arguments: str, number: int = 2, **variables: str) -> Iterator[WorkerServer]:
    served = WorkerServer(f"--workers={number}", *arguments, **variables)
    try:
        yield served
    finally:
        served.kill()
