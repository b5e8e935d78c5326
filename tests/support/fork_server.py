"""A fork server: Python processes that have already imported torch.

The import takes two seconds of CPU time, and dozens of tests need a separate process. Tests that
depend on the start of Python itself must start a new process.
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
from signal import SIGKILL, SIGTERM
from typing import IO, Any

from tests.support.project import ROOT

SERVER = """
import json, os, select, signal, socket, sys
sys.modules["sounddevice"] = None  # so that nothing is played
from vivace.cli.light import import_torch
import_torch()
import vivace.audio.play, vivace.cli.batch, vivace.cli.main, vivace.cli.repl, vivace.cli.say
import vivace.tts

vivace.audio.play.PROBE_TIMEOUT_S = 300.0  # a busy machine starts a player slowly
ends = {}  # of each process that runs, where its exit code goes


def report_ends():
    while ends:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        os.write(ends[pid], str(os.waitstatus_to_exitcode(status)).encode())
        os.close(ends.pop(pid))


# Python runs handlers between instructions: for a signal that arrives just before `select`, the
# handler would run after it. The descriptor ends the wait.
has_ended, on_end = socket.socketpair()
for end in (has_ended, on_end):
    end.setblocking(False)
signal.signal(signal.SIGCHLD, lambda *_: None)
signal.set_wakeup_fd(on_end.fileno(), warn_on_full_buffer=False)
signal.signal(signal.SIGINT, signal.SIG_IGN)
requests = socket.socket(fileno=int(sys.argv[1]))
while True:
    ready, _, _ = select.select([requests, has_ended], [], [])
    if has_ended in ready:
        has_ended.recv(1 << 16)
        report_ends()
    if requests not in ready:
        continue
    request, given, _, _ = socket.recv_fds(requests, 1 << 20, 4)
    if not request:
        os._exit(0)
    if (pid := os.fork()) == 0:
        break
    ends[pid] = given.pop()
    for descriptor in given:
        os.close(descriptor)
    requests.sendall(pid.to_bytes(8, "little"))

signal.set_wakeup_fd(-1)
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
for end in (requests, has_ended, on_end):
    end.close()
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
    """The part of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, exit_code_input: int, pipes: Sequence[int | None]) -> None:
        self.pid, self.returncode, self._exit_code_input = pid, None, exit_code_input
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
            if not select.select([self._exit_code_input], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a forked process", timeout or 0)
            self.returncode = int(os.read(self._exit_code_input, 16))
            os.close(self._exit_code_input)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(SIGTERM)

    def kill(self) -> None:
        self.send_signal(SIGKILL)

    def communicate(self, input: bytes | None = None, timeout: float | None = None) -> Any:
        """Wait for the end and return the outputs that are pipes."""
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
    """The process that forks. It ends when its socket is closed, also when this process ends."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
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
        """`streams` are descriptors or PIPE, with the names of `subprocess.Popen`."""
        ours: list[int | None] = []
        theirs, own = [], []  # `own` are closed here, once they are passed on
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            ends = os.pipe() if streams.get(name) == subprocess.PIPE else None
            ours.append(ends[number == 0] if ends else None)
            theirs.append(ends[number != 0] if ends else streams.get(name, number))
            own += [ends[number != 0]] if ends else []
        exit_code_input, exit_code_output = os.pipe()
        wanted: dict[str, Any] = {"code": code, "arguments": arguments, "env": dict(env)}
        wanted |= {"cwd": str(cwd or Path.cwd()), "is_leader": start_new_session}
        socket.send_fds(self._requests, [json.dumps(wanted).encode()], [*theirs, exit_code_output])
        for descriptor in (*own, exit_code_output):
            os.close(descriptor)
        pid = int.from_bytes(self._requests.recv(8), "little")
        assert pid, "the fork server has crashed"
        return Process(pid, exit_code_input, ours)

    def close(self) -> None:
        self._requests.close()
        self.process.wait()


_servers: list[Server] = []


def server() -> Server:
    """The fork server of this process, started on first use."""
    if not _servers:
        _servers.append(Server())
    return _servers[0]


def run(code: str, *arguments: str, timeout_s: float = 300.0) -> subprocess.CompletedProcess[str]:
    """Run code to its end in a process that has already imported torch."""
    process = server().start(
        code,
        arguments,
        env=os.environ,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    output, error = process.communicate(timeout=timeout_s)
    return subprocess.CompletedProcess([], process.wait(), output.decode(), error.decode())


def end() -> None:
    """Stop the fork server after the last test."""
    while _servers:
        _servers.pop().close()


def pids() -> set[int]:
    """The process id of the fork server, if it runs."""
    return {server.process.pid for server in _servers}
