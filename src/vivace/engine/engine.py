"""The engine: any thread submits utterances, one thread runs the backend for all of them.

The engine's thread owns the queue, the slots and the backend (`vivace.engine.turns.worker`). Other
threads post messages to its inbox and are woken when frames are ready; no lock is held while the
backend works. The thread starts with the first utterance and ends soon after the last, so an idle
engine costs nothing.
"""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from threading import Lock, Thread, current_thread
from typing import TypeVar

from vivace.backends.base import Backend
from vivace.device.interpreter import short_switch_interval
from vivace.device.threads import use_threads
from vivace.engine.limits import EngineLimits, EngineLoad
from vivace.engine.turn_report import TurnHook
from vivace.engine.turns.pipeline import BackendTimes, describe
from vivace.engine.turns.thread import Inbox, Message, start_thread
from vivace.engine.turns.worker import EngineWorker
from vivace.engine.utterances.client import EngineClient
from vivace.engine.utterances.utterance import Utterance
from vivace.errors import MIN_RETRY_S, EngineError, QueueFullError, counted
from vivace.model.config import Head

log = logging.getLogger(__name__)

T = TypeVar("T")
LINGER_S = 0.5  # the idle thread waits this long for more work
QUEUE_CHECK_S = 1.0  # between checks for requests that waited too long


class Engine(EngineClient):
    def __init__(
        self,
        backend: Backend,
        limits: EngineLimits | None = None,
        *,
        threads: int | None = None,  # CPU threads of one operation; None: PyTorch's default
        can_fork: bool = False,  # the backend has no threads and no GPU that a fork would lose
        rebuild: Callable[[], Backend] | None = None,  # a new backend over the same weights
    ) -> None:
        self.threads = threads
        self._worker = EngineWorker(backend, limits or EngineLimits(), threads, rebuild)
        self._can_fork = can_fork
        self._pid = os.getpid()
        self._submitted: deque[Utterance] = deque()  # not yet queued; guarded by `_start_lock`
        self._inbox = Inbox()
        self._start_lock = Lock()
        self._thread: Thread | None = None
        self._stop: weakref.finalize[..., Thread] | None = None  # waits for the thread at exit
        self.busy_since: float | None = None  # when the current turn began; None: idle
        self._linger_s = LINGER_S

    def __repr__(self) -> str:
        load = f"{self.num_running} running, {self.num_waiting} waiting"
        slots = counted(self._worker.scheduler.num_slots, "slot")
        return f"<{type(self).__name__}, backend {self.backend.name}: {load}, {slots}>"

    # -- from any thread ---------------------------------------------------------------------

    def submit(self, utterance: Utterance) -> None:
        """Queue an utterance. Raises QueueFullError unless its stream has already begun."""
        self.check_process()
        utterance.since = utterance.read_at = time.perf_counter()
        with self._start_lock:
            self._check_failure()
            is_new = not utterance.is_continued
            if is_new and self._may_be_full() and (load := self.capacity()).is_full:
                raise QueueFullError(load.num_waiting, max(MIN_RETRY_S, load.wait_s))
            self._submitted.append(utterance)
        self._start()

    def request(self, utterance: Utterance, num_read: int, num_wanted: int) -> None:
        now = time.perf_counter()
        message = partial(self._worker.request, utterance, num_read, num_wanted, now)
        if num_wanted:
            self._inbox.post(message)
        else:
            self._inbox.post_quietly(message)

    def extend(self, utterance: Utterance, text_ids: Sequence[int], is_last: bool) -> None:
        self._inbox.post(partial(self._worker.extend, utterance, text_ids, is_last))

    def cancel(self, utterance: Utterance) -> None:
        if os.getpid() == self._pid and not utterance.is_over:
            utterance.is_cancelled = True
            self._inbox.post(partial(self._worker.scheduler.resume, utterance))
            utterance.wake()

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` between two turns, after cancelled utterances are released."""
        self.check_process()
        if current_thread() is self._thread:
            return function()
        future: Future[T] = Future()

        def run() -> None:
            try:
                self._worker.sweep()
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        self._start(run)
        return future.result()

    def watch(self, head: Head) -> None:
        """Report the text places of this attention head. Call it on the engine's thread."""
        self._worker.watch(head)

    def post(self, function: Callable[[], object], wake: Callable[[], None]) -> None:
        """Run `function`, which must not raise, between two turns; then call `wake`."""
        self.check_process()

        def run() -> None:
            with use_threads(self.threads):
                function()
            wake()

        self._start(run)

    def close(self) -> None:
        """Let the thread end with the last utterance instead of waiting for more."""
        self._linger_s = 0.0
        thread = self._thread
        self._inbox.wake()
        is_idle = not self._submitted and not self._worker.utterances
        if is_idle and thread is not None and thread is not current_thread():
            thread.join(1.0)  # it holds the weights

    def abandon(self, reason: str) -> None:
        """Fail all utterances, now and later, while the thread hangs in the backend.

        The process no longer waits for the thread, not even at exit. The engine's thread itself
        must not call it.
        """
        with self._start_lock:
            self._worker.failure = EngineError(reason)
            left = [*self._worker.utterances, *self._submitted]
            if self._stop is not None:
                self._stop.detach()
        for one in left:
            one.fail(EngineError(reason))
            self._inbox.post(partial(self._worker.scheduler.resume, one))
            one.wake()

    # -- state -------------------------------------------------------------------------------

    @property
    def limits(self) -> EngineLimits:
        return self._worker.limits

    @property
    def backend(self) -> Backend:
        return self._worker.backend

    @property
    def on_turn(self) -> TurnHook | None:
        """Called by the engine's thread after every turn."""
        return self._worker.on_turn

    @on_turn.setter
    def on_turn(self, hook: TurnHook | None) -> None:
        self._worker.on_turn = hook

    @property
    def is_broken(self) -> bool:
        return self._worker.failure is not None

    @property
    def has_lost_device(self) -> bool:
        """Whether this process can no longer use its GPU."""
        return self._worker.has_lost_device

    @property
    def num_rebuilds(self) -> int:
        """Times that the backend was rebuilt."""
        return self._worker.num_rebuilds

    @property
    def num_running(self) -> int:
        """Utterances that have a slot."""
        return len(self._running())

    @property
    def num_waiting(self) -> int:
        """Utterances that wait for a slot."""
        return len(self._waiting())

    @property
    def num_together(self) -> int:
        return self._worker.scheduler.num_slots if self.backend.shares_work else 1

    @property
    def follows_text(self) -> bool:
        return self.backend.watched is not None

    @property
    def backend_times(self) -> BackendTimes:
        return self._worker.pipeline.times

    def capacity(self, num_expected: int = 0) -> EngineLoad:
        running, queued, worker = self._running(), self._waiting(), self._worker
        wait_s = worker.waits.estimate_s(
            running,
            queued,
            num_slots=worker.scheduler.num_usable_slots,
            now=time.perf_counter(),
            num_expected=num_expected,
            shares_work=self.backend.shares_work,
        )
        num_slots, num_waiting = worker.scheduler.num_slots, len(queued) + num_expected
        return EngineLoad(num_slots, len(running), num_waiting, self.limits.max_queue, wait_s)

    def _may_be_full(self) -> bool:
        """Whether the engine is full if no utterance that it holds is over."""
        scheduler = self._worker.scheduler
        num_held = len(scheduler.running) + len(scheduler.queue) + len(self._submitted)
        return num_held >= scheduler.num_slots + self.limits.max_queue

    def _running(self) -> list[Utterance]:
        return [one for one in tuple(self._worker.scheduler.running) if not one.is_over]

    def _waiting(self) -> list[Utterance]:
        waiting = (*self._worker.scheduler.queue, *self._submitted)
        return [one for one in waiting if not one.is_over]

    def check_process(self) -> None:
        """Raise EngineError in a forked child, unless the engine was idle and can be used there."""
        if os.getpid() == self._pid:
            return
        if not self._can_fork or self._submitted or self._worker.utterances:
            raise EngineError(
                f"this TTS was loaded in process {self._pid} and cannot be used in a child forked "
                "while it speaks, or forked at all if it runs on a GPU or on several threads; "
                "load it in the child, or start children with multiprocessing's 'spawn'"
            )
        self._pid, self._thread = os.getpid(), None
        self._inbox, self._start_lock = Inbox(), Lock()

    def _check_failure(self) -> None:
        """Raise a new error for each request: the traceback of a reused error would grow."""
        if (failure := self._worker.failure) is not None:
            raise EngineError(str(failure)) from failure.__cause__

    def _start(self, message: Message | None = None) -> None:
        """Post a message, or only wake the thread; start the thread if none runs."""
        with self._start_lock:
            if message is None:
                self._inbox.wake()
            else:
                self._inbox.post(message)
            if self._thread is None:
                self._thread, self._stop = start_thread(self._work, self._inbox)

    # -- the engine's thread -----------------------------------------------------------------

    def _work(self) -> None:
        worker, is_idle = self._worker, False
        try:
            while self._read_messages(is_idle):
                self._work_until_idle()
                is_idle = True
        except Exception as fault:  # a bug of the engine; readers must not wait forever
            log.exception("the engine failed")
            worker.break_down(fault, f"the engine failed ({describe(fault)}); load the model again")
            worker.sweep()
            with self._start_lock:
                self._thread = self.busy_since = None

    def _work_until_idle(self) -> None:
        """Take turns, and read messages between them.

        The switch interval stays short between turns. If this thread lost the interpreter there, it
        would otherwise wait for the long interval while the device is idle.
        """
        is_idle = False
        with short_switch_interval():
            while not is_idle:
                self.busy_since = time.perf_counter()
                is_idle = not self._take_turn()
                self._worker.expire(is_idle)
                if not is_idle:
                    self._read_messages(is_idle)

    def _read_messages(self, is_idle: bool) -> bool:
        """Run all messages, after waiting for one if idle. Returns False if the thread ends."""
        if is_idle:
            self.busy_since = None
            self._inbox.wait(self._idle_timeout_s())
        while (message := self._inbox.take()) is not None:
            self.busy_since = time.perf_counter()
            message()
        return not is_idle or bool(self._worker.utterances) or not self._end()

    def _take_turn(self) -> bool:
        with self._start_lock:  # `submit` counts them
            submitted = list(self._submitted)
            self._submitted.clear()
            self._worker.queue(submitted)
        return self._worker.take_turn()

    def _idle_timeout_s(self) -> float | None:
        """Until a request may have waited too long, or the idle thread ends."""
        if self._worker.scheduler.queue:
            return QUEUE_CHECK_S
        return None if self._worker.scheduler.running else self._linger_s

    def _end(self) -> bool:
        with self._start_lock:
            if self._inbox.is_empty and not self._submitted:
                self._thread = self.busy_since = None
            return self._thread is None
