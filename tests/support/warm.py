"""Processes of Python that have torch already: one imports it, and forks as many as tests want.

The import takes two seconds of the processor, and dozens of tests need a process of their own.
Whatever depends on how Python starts belongs in a process that is really started.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from typing import IO, Any

from tests.support.project import ROOT

SERVER = """
import json, os, signal, socket, sys
sys.modules["sounddevice"] = None  # so that nothing is heard
from vivace.cli.light import import_torch
import_torch()
import vivace.audio.play, vivace.cli.batch, vivace.cli.main, vivace.cli.repl, vivace.cli.say
import vivace.tts

ends = {}  # of each process that runs, where its exit code goes


def tell_ends(*_):
    while ends:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        os.write(ends[pid], str(os.waitstatus_to_exitcode(status)).encode())
        os.close(ends.pop(pid))


signal.signal(signal.SIGCHLD, tell_ends)
signal.signal(signal.SIGINT, signal.SIG_IGN)
door = socket.socket(fileno=int(sys.argv[1]))
while True:
    request, given, _, _ = socket.recv_fds(door, 1 << 20, 4)
    if not request:
        os._exit(0)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    if (pid := os.fork()) == 0:
        break
    ends[pid] = given.pop()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    for descriptor in given:
        os.close(descriptor)
    door.sendall(pid.to_bytes(8, "little"))

signal.signal(signal.SIGCHLD, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
door.close()
for number, descriptor in enumerate(given[:3]):
    os.dup2(descriptor, number)
for descriptor in (*given, *ends.values()):
    os.close(descriptor)
wanted = json.loads(request)
if wanted["is_leader"]:
    os.setsid()
os.chdir(wanted["cwd"])
os.environ.clear()
os.environ.update(wanted["env"])
sys.stdin = open(0, closefd=False)
sys.stdout = open(1, "w", closefd=False)
sys.stderr = open(2, "w", closefd=False, errors="backslashreplace", buffering=1)
sys.argv = ["-c", *wanted["arguments"]]
exec(compile(wanted["code"], "<string>", "exec"), {"__name__": "__main__"})
"""


class Process:
    """What tests use of `subprocess.Popen`."""

    def __init__(self, pid: int, told: int, pipes: Sequence[int | None]) -> None:
        self.pid, self.returncode, self._told = pid, None, told
        self.stdin, self.stdout, self.stderr = (
            None if pipe is None else open(pipe, "rb" if number else "wb")  # noqa: SIM115
            for number, pipe in enumerate(pipes)
        )

    returncode: int | None

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a warm process", timeout or 0)
            self.returncode = int(os.read(self._told, 16))
            os.close(self._told)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(SIGKILL)

    def communicate(self, input: bytes | None = None, timeout: float | None = None) -> Any:
        """Whole outputs, of those that are pipes, once it has ended."""
        outputs: dict[int, bytes] = {}

        def read(number: int, file: IO[bytes]) -> None:
            with file:
                outputs[number] = file.read()

        files = [(number, file) for number, file in ((1, self.stdout), (2, self.stderr)) if file]
        readers = [threading.Thread(target=read, args=pair, daemon=True) for pair in files]
        for reader in readers:
            reader.start()
        if self.stdin is not None:
            with suppress(BrokenPipeError), self.stdin:
                self.stdin.write(input or b"")
        self.wait(timeout)
        for reader in readers:
            reader.join()
        return outputs.get(1), outputs.get(2)


class Server:
    """The process that forks; it ends when its door is closed, as when this process ends."""

    def __init__(self) -> None:
        self._door, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVER, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
            )

    def start(
        self,
        code: str,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | Path | None = None,
        start_new_session: bool = False,
        **streams: int,
    ) -> Process:
        """`streams` are descriptors or PIPE, named as those of `subprocess.Popen`."""
        ours: list[int | None] = []
        theirs, own = [], []  # `own` are closed here, once they are passed on
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            ends = os.pipe() if streams.get(name) == subprocess.PIPE else None
            ours.append(ends[number == 0] if ends else None)
            theirs.append(ends[number != 0] if ends else streams.get(name, number))
            own += [ends[number != 0]] if ends else []
        told, tell = os.pipe()
        wanted = {"code": code, "arguments": arguments, "env": dict(env)}
        wanted |= {"cwd": str(cwd or Path.cwd()), "is_leader": start_new_session}
        socket.send_fds(self._door, [json.dumps(wanted).encode()], [*theirs, tell])
        for descriptor in (*own, tell):
            os.close(descriptor)
        pid = int.from_bytes(self._door.recv(8), "little")
        assert pid, "the server of warm processes has died"
        return Process(pid, told, ours)

    def close(self) -> None:
        self._door.close()
        self.process.wait()


_servers: list[Server] = []


def server() -> Server:
    """The one of this process, started when it is first asked for."""
    if not _servers:
        _servers.append(Server())
    return _servers[0]


def end() -> None:
    """The server's own end, after the last test."""
    while _servers:
        _servers.pop().close()


def pids() -> set[int]:
    """Of the server, if there is one."""
    return {server.process.pid for server in _servers}
