"""The supervisor: starts the engine's process and the workers, restarts and stops them.

The supervisor reserves the port. Each worker listens on it with a socket of its own, and the kernel
distributes the connections. The supervisor itself serves nothing and does not import PyTorch.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from vivace.errors import EngineLostError, TTSError
from vivace.serve.http.listener import bind
from vivace.serve.models.crashes import (
    MAX_CRASHES,
    WINDOW_S,
    CrashLog,
    Quarantine,
    dump_state,
    load_state,
)
from vivace.serve.processes.child import Child, child_command
from vivace.serve.processes.control import (
    ENGINE,
    FAILED,
    GAVE_UP,
    METRICS,
    NEEDS_RESTART,
    Assignment,
    Values,
)
from vivace.serve.processes.shared_counts import SharedCounts
from vivace.serve.processes.shared_metrics import VARIABLE, forget_process
from vivace.serve.settings import ServeSettings

log = logging.getLogger(__name__)

ENGINE_BACKLOG = 128
DRAIN_REPLY_S = 5.0  # for the workers to report their streams
STOP_TIMEOUT_S = 15.0  # after the drain, until a process is killed
WORKER_PAUSES_S = (0.0, 1.0, 2.0, 4.0, 8.0)  # before a worker that ends early is started again
EARLY_S = 10.0
FOLDER_CHARS = 80  # the path of a Unix socket has at most 107

StartCommand = Callable[[int], list[str]]
ShowReady = Callable[[str, str | None, list[str]], None]
"""Called with the URLs of HTTP and Wyoming, and the names of the models that have a voice."""


class Reports(Protocol):
    """Messages to the user."""

    def show_drain(self, num_streams: int, timeout_s: float, number: int) -> None: ...

    def show_cut(self, num_streams: int) -> None: ...

    def fail(self, error: TTSError) -> None: ...

    def say(self, words: str) -> None: ...


class Supervisor:
    def __init__(
        self,
        settings: ServeSettings,
        num_workers: int,
        reports: Reports,
        show_ready: ShowReady,
        *,
        start_command: StartCommand = child_command,
    ) -> None:
        self._reports, self._show_ready = reports, show_ready
        self._start_command = start_command
        self._settings = self._reserve_ports(settings)
        long_path = len(tempfile.gettempdir()) > FOLDER_CHARS
        self._folder = Path(tempfile.mkdtemp(prefix="vivace-", dir="/tmp" if long_path else None))
        (self._folder / METRICS).mkdir()
        self._counts = SharedCounts.create(len(settings.served_models), num_workers)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._folder / ENGINE))
        self._listener.listen(ENGINE_BACKLOG)
        self._engine: Child | None = None
        self._workers: dict[int, Child] = {}
        self._num_workers = num_workers
        self._crashes, self._strikes = CrashLog(), Quarantine()
        self._able: list[str] | None = None  # names of models with a voice; None: not loaded
        self._urls: tuple[str, str | None] | None = None
        self._is_announced = self._is_stopping = False
        self._num_early_ends = dict.fromkeys(range(num_workers), 0)
        self._draining: dict[int, int] = {}  # streams by worker
        self._num_cut = 0
        self._exit_code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()

    def _reserve_ports(self, settings: ServeSettings) -> ServeSettings:
        self._reserved: list[socket.socket] = []
        found = {}
        for name, flag in (("port", "--port"), ("wyoming_port", "--wyoming-port")):
            if (port := getattr(settings, name)) is None:
                continue
            with bind(settings.host, port, flag) as probe:  # fails if another server has the port
                port = probe.getsockname()[1]
            self._reserved.append(bind(settings.host, port, flag, is_shared=True, listens=False))
            found[name] = port
        return settings.model_copy(update=found)

    async def run(self) -> int:
        """Serve until a signal. Returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:  # background job of a shell
                loop.add_signal_handler(number, self._stop, number)
        try:
            self._start_engine()
            for worker in range(self._num_workers):
                self._start_worker(worker)
            return await self._exit_code
        finally:
            self._kill_all()
            for task in self._tasks:
                task.cancel()
            shutil.rmtree(self._folder, ignore_errors=True)
            for one in (*self._reserved, self._listener):
                one.close()

    # -- processes -----------------------------------------------------------------------------

    def _start_engine(self, *, is_after_crash: bool = False) -> None:
        self._engine = self._start(None, is_after_crash=is_after_crash)
        self._counts.set_engine(self._engine.process.pid)
        self._run(self._watch(self._engine, self._receive_from_engine, self._end_engine))

    def _start_worker(self, worker: int) -> None:
        child = self._workers[worker] = self._start(worker)
        self._counts.set_worker(worker, child.process.pid)
        self._run(
            self._watch(
                child, partial(self._receive_from_worker, worker), partial(self._end_worker, worker)
            )
        )

    def _start(self, worker: int | None, *, is_after_crash: bool = False) -> Child:
        ours, theirs = socket.socketpair()
        files = (theirs.fileno(), self._counts.file, self._listener.fileno())
        with theirs:
            process = subprocess.Popen(
                self._start_command(theirs.fileno()),
                pass_fds=files if worker is None else files[:2],
                env={**os.environ, VARIABLE: str(self._folder / METRICS)},
                start_new_session=True,  # Ctrl-C is left to the supervisor
            )
        child = Child(process, ours)
        assignment = Assignment(
            settings=self._settings,
            folder=self._folder,
            supervisor=os.getpid(),
            num_workers=self._num_workers,
            counts_file=self._counts.file,
            listener_file=self._listener.fileno(),
            worker=worker,
            crash_state=dump_state(self._crashes, self._strikes),
            is_after_crash=is_after_crash,
        )
        child.send(assignment.dump())
        return child

    async def _watch(
        self,
        child: Child,
        on_values: Callable[[Values], None],
        on_end: Callable[[Child, int], None],
    ) -> None:
        code = await child.read(on_values)
        forget_process(self._folder / METRICS, child.process.pid)
        on_end(child, code)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _kill_all(self) -> None:
        children = [*self._workers.values(), *([self._engine] if self._engine else [])]
        for child in children:
            if child.process.poll() is None:
                child.process.kill()
        for child in children:
            child.process.wait()

    def _finish(self, code: int) -> None:
        if not self._exit_code.done():
            self._exit_code.set_result(code)

    # -- the engine's process ------------------------------------------------------------------

    def _receive_from_engine(self, values: Values) -> None:
        assert self._engine is not None
        if "ready" in values:
            self._engine.is_ready, self._able = True, values["ready"]
            self._announce()
        elif "crash_state" in values:
            self._crashes, self._strikes = CrashLog(), Quarantine()
            load_state(values["crash_state"], self._crashes, self._strikes)
        elif "failed" in values:
            self._reports.fail(_error(values))

    def _end_engine(self, child: Child, code: int) -> None:
        self._counts.set_engine(0)
        if self._is_stopping:
            self._engine = None
            self._finish_if_empty()
        elif code == GAVE_UP:  # it has reported the reason
            self._finish(GAVE_UP)
        elif code == NEEDS_RESTART:
            self._run(self._restart_engine(is_after_crash=False))
        elif code == FAILED and self._able is None:
            self._finish(FAILED)
        else:
            self._record_crash(code)

    def _record_crash(self, code: int) -> None:
        self._crashes.add()
        reason = f"the engine's process ended with {_describe(code)}"
        log.error("%s", reason)
        if self._crashes.is_limit_reached:
            limits = f"{MAX_CRASHES} times in {WINDOW_S / 60:g} minutes"
            self._reports.fail(EngineLostError(f"the engine crashed {limits}; {reason}"))
            self._finish(GAVE_UP)
        else:
            self._run(self._restart_engine(is_after_crash=True))

    async def _restart_engine(self, *, is_after_crash: bool) -> None:
        pause_s = self._crashes.pause_s
        self._reports.say(f"restarting the engine's process in {pause_s:g} s")
        await asyncio.sleep(pause_s)
        if not self._is_stopping:
            self._start_engine(is_after_crash=is_after_crash)

    # -- workers -------------------------------------------------------------------------------

    def _receive_from_worker(self, worker: int, values: Values) -> None:
        child = self._workers[worker]
        if "ready" in values:
            child.is_ready, self._urls = True, (values["ready"], values["wyoming"])
            self._announce()
        elif "draining" in values:
            self._draining[worker] = values["draining"]
        elif "cut" in values:
            self._num_cut += values["cut"]
        elif "failed" in values and not self._is_stopping:
            self._is_stopping = True  # the other workers would report the same
            self._reports.fail(_error(values))
            self._finish(FAILED)

    def _end_worker(self, worker: int, child: Child, code: int) -> None:
        self._counts.set_worker(worker, 0)
        if self._is_stopping:
            del self._workers[worker]
            self._finish_if_empty()
            return
        log.error("worker %d ended with %s and is started again", worker, _describe(code))
        is_early = time.monotonic() - child.started < EARLY_S
        number = self._num_early_ends[worker] + 1 if is_early else 0
        self._num_early_ends[worker] = number
        self._run(self._restart_worker(worker, WORKER_PAUSES_S[min(number, 4)]))

    async def _restart_worker(self, worker: int, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        if not self._is_stopping:
            self._start_worker(worker)

    def _announce(self) -> None:
        """Report once that the server is ready."""
        is_ready = len(self._workers) == self._num_workers and self._able is not None
        is_ready = is_ready and all(child.is_ready for child in self._workers.values())
        if is_ready and not self._is_announced and self._urls is not None:
            self._is_announced = True
            assert self._able is not None
            self._show_ready(*self._urls, self._able)

    # -- the end -------------------------------------------------------------------------------

    def _stop(self, number: int = signal.SIGTERM) -> None:
        """Let the workers finish running streams. The second call stops now."""
        if not self._is_stopping:
            self._is_stopping = True
            self._run(self._report_drain(number))
            self._run(self._kill_late())
        for child in self._workers.values():
            child.send({"stop": int(number)})
        self._finish_if_empty()

    async def _report_drain(self, number: int) -> None:
        deadline = time.monotonic() + DRAIN_REPLY_S
        while len(self._draining) < len(self._workers) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        limit_s = self._settings.drain_timeout_s
        self._reports.show_drain(sum(self._draining.values()), limit_s, number)

    async def _kill_late(self) -> None:
        await asyncio.sleep(self._settings.drain_timeout_s + STOP_TIMEOUT_S)
        for child in self._workers.values():
            log.error("a worker did not stop in time and is killed")
            child.process.kill()

    def _finish_if_empty(self) -> None:
        """Stop the engine's process after the last worker, then end."""
        if self._workers:
            return
        if self._engine is None or self._engine.process.poll() is not None:
            if self._num_cut:
                self._reports.show_cut(self._num_cut)
            self._finish(0)
        else:
            self._engine.send({"stop": True})
            self._run(self._kill_engine())

    async def _kill_engine(self) -> None:
        await asyncio.sleep(STOP_TIMEOUT_S)
        if self._engine is not None:
            self._engine.process.kill()


def _error(values: Values) -> TTSError:
    """An error that a process has reported, with the name of its class."""
    kind: type[TTSError] = type(values["error"], (TTSError,), {})
    return kind(values["failed"])


def _describe(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"code {code}"
