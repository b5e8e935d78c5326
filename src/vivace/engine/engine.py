"""The only caller of a backend: one thread runs turns for all utterances.

The thread owns the queue, the slots and the backend; everybody else sends it mail and is woken when
frames are ready. `SimpleQueue.put` is reentrant, so mail may come from any thread, a finalizer or a
signal handler, and no lock is held while the backend works. The thread starts with the first
utterance and ends soon after the last, so an idle engine costs nothing.
"""

from __future__ import annotations

import gc
import logging
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread, current_thread
from typing import TypeVar

from vivace.backends.base import Backend
from vivace.device import is_context_lost, use_threads
from vivace.engine.pipeline import Pipeline, Spent, describe
from vivace.engine.scheduler import EngineLimits, Load, Plan, Scheduler
from vivace.engine.thread import Mail, start_thread
from vivace.engine.utterance import State, Turn, Utterance
from vivace.engine.wait import WaitEstimator
from vivace.errors import EngineError, QueueFullError
from vivace.model.config import Head

log = logging.getLogger(__name__)

T = TypeVar("T")
LINGER_S = 0.5  # the thread waits for more work
UNREAD_S = 2.0  # a stream that is not read for so long may be garbage
COLLECT_EVERY_S = 10.0
MIN_RETRY_S = 0.1
MAX_FAULTS = 3  # turns that fail in a row before the backend is rebuilt


class Engine:
    def __init__(
        self,
        backend: Backend,
        limits: EngineLimits | None = None,
        *,
        threads: int | None = None,  # of the CPU, for one operation; None: PyTorch's own number
        can_fork: bool = False,  # the backend has no threads and no GPU that a fork would lose
        rebuild: Callable[[], Backend] | None = None,  # a new backend over the same weights
    ) -> None:
        self.backend = backend
        self.limits = limits or EngineLimits()
        self.threads = threads
        self.on_turn: Callable[[Turn], None] | None = None  # called by the engine's thread
        self._can_fork, self._rebuild = can_fork, rebuild
        self._pid = os.getpid()
        num_slots = min(self.limits.max_streams or backend.max_streams, backend.max_streams)
        self._scheduler = Scheduler(self.limits, num_slots, shares_work=backend.shares_work)
        self._pipeline = Pipeline(backend)
        self._waits = WaitEstimator()  # written by the engine's thread
        self._inbox: deque[Utterance] = deque()  # submitted, and not yet queued
        self._mail: Mail = SimpleQueue()
        self._returned: deque[Utterance] = deque()  # paused, and their readers are back
        self._start_lock = Lock()
        self._thread: Thread | None = None
        self._stop: weakref.finalize[..., Thread] | None = None  # waits for the thread at exit
        self.busy_since: float | None = None  # when the turn under way began; None: idle
        self._linger_s = LINGER_S
        self._num_faults = 0  # in a row
        self.num_rebuilds = 0  # of the backend
        self.has_lost_device = False  # for this process
        self._collected_at = 0.0
        self._head: Head | None = None  # that was found; the config's own is the backend's
        self._failure: EngineError | None = None  # nothing runs after it

    # -- from any thread ---------------------------------------------------------------------

    def submit(self, utterance: Utterance) -> None:
        """Queue an utterance, or raise a QueueFullError; a stream that has begun is not refused."""
        self.check_process()
        utterance.since = utterance.read_at = time.perf_counter()
        with self._start_lock:
            self._check_failure()
            is_new = not utterance.is_continued
            if is_new and self._may_be_full() and (load := self.capacity()).is_full:
                raise QueueFullError(load.num_waiting, max(MIN_RETRY_S, load.wait_s))
            self._inbox.append(utterance)
        self._post(None)

    def request(self, utterance: Utterance, num_frames: int) -> None:
        """Its reader waits until it is ready with so many frames."""
        utterance.read_at, utterance.num_wanted = time.perf_counter(), num_frames
        utterance.num_asked += 1
        self._return(utterance)
        if not utterance.is_ready:
            self._mail.put(None)

    def extend(self, utterance: Utterance, text_ids: Sequence[int], is_last: bool) -> None:
        """Append live text, in time for the next turn."""
        utterance.is_text_sent = True
        self._mail.put(partial(self._extend, utterance, text_ids, is_last))

    def cancel(self, utterance: Utterance) -> None:
        """Free its slot after the turn under way, and wake its reader.

        From any thread, at any time: also from a finalizer or a signal handler.
        """
        if os.getpid() == self._pid and not utterance.is_over:
            utterance.cancel()
            self._return(utterance)
            self._mail.put(None)
            utterance.wake()

    def _return(self, utterance: Utterance) -> None:
        """The next turn looks at it again. It has changed before: the thread looks twice."""
        if utterance.is_paused:
            self._returned.append(utterance)

    def call(self, function: Callable[[], T]) -> T:
        """Run it between two turns, when all that was cancelled is released."""
        self.check_process()
        if current_thread() is self._thread:
            return function()
        future: Future[T] = Future()

        def run() -> None:
            try:
                self._sweep()
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        self._post(run)
        return future.result()

    def watch(self, head: Head) -> None:
        """Report where this attention head is in the text; call it on the engine's thread."""
        self._head = head
        self.backend.watch(head)

    def post(self, function: Callable[[], object], wake: Callable[[], None]) -> None:
        """Run it between two turns, and call `wake` then; it may raise nothing."""
        self.check_process()

        def run() -> None:
            with use_threads(self.threads):
                function()
            wake()

        self._post(run)

    def close(self) -> None:
        """Let the thread end with the last utterance instead of waiting for more."""
        self._linger_s = 0.0
        thread = self._thread
        self._mail.put(None)
        is_idle = not self._inbox and not self._utterances()
        if is_idle and thread is not None and thread is not current_thread():
            thread.join(1.0)  # it holds the weights

    def abandon(self, reason: str) -> None:
        """The thread hangs in the backend: fail all utterances, now and later, without it.

        The thread is not waited for any more, not even at exit. Not for the thread itself.
        """
        with self._start_lock:
            self._failure = EngineError(reason)
            left = [*self._utterances(), *self._inbox]
            if self._stop is not None:
                self._stop.detach()
        for one in left:
            one.fail(EngineError(reason))
            self._return(one)
            one.wake()

    def _may_be_full(self) -> bool:
        """Whether there are enough utterances for that, those that are over included."""
        num_held = len(self._scheduler.running) + len(self._scheduler.queue) + len(self._inbox)
        return num_held >= self._scheduler.num_slots + self.limits.max_queue

    def capacity(self, num_expected: int = 0) -> Load:
        """The load now; `num_expected` accepted requests that are not yet submitted wait too."""
        running, queued = self._running(), self._waiting()
        wait_s = self._waits.estimate_s(
            running,
            queued,
            num_slots=self._scheduler.num_usable_slots,
            now=time.perf_counter(),
            num_expected=num_expected,
            shares_work=self.backend.shares_work,
        )
        num_slots, num_waiting = self._scheduler.num_slots, len(queued) + num_expected
        return Load(num_slots, len(running), num_waiting, self.limits.max_queue, wait_s)

    @property
    def is_broken(self) -> bool:
        """Whether every request is refused until the model is loaded again."""
        return self._failure is not None

    @property
    def num_running(self) -> int:
        """Utterances that have a slot."""
        return len(self._running())

    @property
    def num_waiting(self) -> int:
        """Utterances that wait for a slot."""
        return len(self._waiting())

    def _running(self) -> list[Utterance]:
        return [one for one in tuple(self._scheduler.running) if not one.is_over]

    def _waiting(self) -> list[Utterance]:
        return [one for one in (*self._scheduler.queue, *self._inbox) if not one.is_over]

    @property
    def num_together(self) -> int:
        """How many streams gain from being read concurrently."""
        return self._scheduler.num_slots if self.backend.shares_work else 1

    @property
    def spent(self) -> Spent:
        return self._pipeline.spent

    def check_process(self) -> None:
        """An EngineError in a forked child, unless the engine was idle and can be used there."""
        if os.getpid() == self._pid:
            return
        if not self._can_fork or self._inbox or self._utterances():
            raise EngineError(
                f"this TTS was loaded in process {self._pid} and cannot be used in a child forked "
                "while it speaks, or forked at all if it runs on a GPU or on several threads; "
                "load it in the child, or start children with multiprocessing's 'spawn'"
            )
        self._pid, self._thread = os.getpid(), None
        self._mail, self._start_lock = SimpleQueue(), Lock()

    def _check_failure(self) -> None:
        """A new error for each request: the traceback of one that is raised again grows."""
        if self._failure is not None:
            raise EngineError(str(self._failure)) from self._failure.__cause__

    def _post(self, letter: Callable[[], object] | None) -> None:
        """Send mail and make sure that the thread runs to read it."""
        with self._start_lock:
            self._mail.put(letter)
            if self._thread is None:
                self._thread, self._stop = start_thread(self._work, self._mail)

    # -- the thread --------------------------------------------------------------------------

    def _work(self) -> None:
        is_idle = False
        try:
            while self._read_mail(is_idle):
                self.busy_since = time.perf_counter()
                is_idle = not self._take_turn()
                if self._scheduler.queue:
                    self._expire(is_idle)
        except Exception as fault:  # a bug of the engine; readers must not wait for ever
            log.exception("the engine failed")
            self._break(fault, f"the engine failed ({describe(fault)}); load the model again")
            self._sweep()
            with self._start_lock:
                self._thread = self.busy_since = None

    def _read_mail(self, is_idle: bool) -> bool:
        """Do what the mail says, after waiting for some if idle; False: the thread ends."""
        try:
            if is_idle:
                self.busy_since = None
                self._open(self._mail.get(timeout=self._num_idle_s()))
            while True:
                self._open(self._mail.get_nowait())
        except Empty:
            return not is_idle or bool(self._utterances()) or not self._end()

    def _open(self, letter: Callable[[], object] | None) -> None:
        if letter is not None:
            self.busy_since = time.perf_counter()
            letter()

    def _num_idle_s(self) -> float | None:
        """How long to wait for mail: until a request has waited too long, or the thread ends."""
        if self._scheduler.queue:
            return 1.0
        return None if self._scheduler.running else self._linger_s

    def _end(self) -> bool:
        with self._start_lock:
            if self._mail.empty() and not self._inbox:
                self._thread = self.busy_since = None
            return self._thread is None

    def _utterances(self) -> list[Utterance]:
        return [*self._scheduler.running, *self._scheduler.queue]

    def _extend(self, utterance: Utterance, text_ids: Sequence[int], is_last: bool) -> None:
        if utterance.is_over:
            return
        if utterance.slot is None:  # it waits for another slot, whose prompt will have the text
            utterance.extend(text_ids, is_last)
            return
        self._scheduler.resume(utterance)
        try:
            self.backend.extend(utterance.slot, text_ids, is_last)
            utterance.extend(text_ids, is_last)
        except BaseException as fault:
            self._settle(fault, [utterance])

    def _take_in(self) -> None:
        with self._start_lock:  # `submit` counts them
            while self._inbox:
                self._scheduler.queue.append(self._inbox.popleft())
        if self._failure is not None:
            for one in self._scheduler.queue:
                one.fail(_engine_error(str(self._failure), self._failure))

    def _take_turn(self) -> bool:
        """One turn; False: there is nothing to do."""
        self._take_in()
        self._sweep()
        pipeline, plan, began = self._pipeline, Plan(), time.perf_counter()
        if pipeline.can_start:
            plan = self._scheduler.plan(is_rendering=pipeline.is_rendering)
        if not plan.admitted and not plan.stepped and not pipeline.is_busy:
            return False
        try:
            with use_threads(self.threads):
                pipeline.run(plan.admitted, plan.stepped, plan.num_frames)
            self._num_faults = 0
        except BaseException as fault:
            self._settle(fault, pipeline.give_up())
        self._wait_for_memory(*pipeline.take_waiting())
        self._sweep()
        for one in self._scheduler.active:
            one.wake_if_ready()
        self._scheduler.pause_unread()
        if len(plan.admitted) == 1:
            self._waits.observe_admission(time.perf_counter() - began)
        self._report(plan, began)
        return True

    def _wait_for_memory(self, refused: Sequence[Utterance], starved: Sequence[Utterance]) -> None:
        self._scheduler.wait_for_memory(refused, starved)
        if refused and not self._scheduler.running:  # nobody will give any back
            refused[0].fail(EngineError("the backend has lost its memory; load the model again"))

    def _report(self, plan: Plan, began: float) -> None:
        given = {self.on_turn, *(one.on_turn for one in plan.stepped)}
        if not (hooks := [hook for hook in given if hook is not None]):
            return
        waits_s = tuple(one.waited_s for one in plan.admitted if one.waited_s)
        seconds = time.perf_counter() - began
        turn = Turn(waits_s, len(plan.stepped), plan.num_frames, began, seconds)
        for hook in hooks:
            try:
                hook(turn)
            except Exception:
                log.warning("the hook for turns failed", exc_info=True)

    def _sweep(self) -> None:
        """Free the slots of utterances that are over, and wake their readers."""
        while self._returned:
            self._scheduler.resume(self._returned.popleft())
        for one in (*self._scheduler.active, *self._scheduler.queue):
            if one.state is State.RETRYING:
                self._release(one)
                one.queue(time.perf_counter())
                self._scheduler.requeue(one)
            elif one.is_over:
                if one.slot is not None:
                    is_complete = one.finish_reason == "stop"
                    held_s = time.perf_counter() - one.since
                    self._waits.observe_end(one, held_s, is_complete=is_complete)
                self._scheduler.remove(one)
                self._release(one)
                one.wake()

    def _release(self, utterance: Utterance) -> None:
        slot, utterance.slot = utterance.slot, None
        if slot is None or self._failure is not None:
            return
        try:
            self.backend.release(slot)
        except Exception:
            log.warning("the backend could not release slot %d", slot, exc_info=True)

    def _expire(self, is_idle: bool) -> None:
        """Requests wait for a slot: end streams that are not read, and requests that wait long."""
        now, limits = time.perf_counter(), self.limits
        unread = [one for one in self._scheduler.running if not one.num_wanted]
        idle_s = max((now - one.read_at for one in unread), default=0.0)
        if is_idle and idle_s > UNREAD_S and now - self._collected_at > COLLECT_EVERY_S:
            self._collected_at = now
            gc.collect()  # a stream that is alive only in a reference cycle holds a slot
        for one in unread:
            if now - one.read_at > limits.max_idle_s:
                one.fail(
                    EngineError(
                        f"this stream was not read, or got no text, for {limits.max_idle_s:.0f} s "
                        "while others waited for its slot; allow more with max_streams"
                    )
                )
                self._return(one)
        for one in self._scheduler.queue if is_idle else ():
            if now - one.since > limits.max_wait_s:
                one.fail(QueueFullError(self.num_waiting, limits.max_wait_s, self.num_running))

    # -- trouble -----------------------------------------------------------------------------

    def _settle(self, fault: BaseException, utterances: Sequence[Utterance]) -> None:
        """Fail the utterances whose slots are in an unknown state, or all of them.

        All fail after a lost context, and when the backend is rebuilt after faults in a row.
        """
        self._num_faults += 1
        if is_context_lost():
            self.has_lost_device = True
            reason = f"the backend broke ({describe(fault)}); start the process again to go on"
            self._break(fault, reason)
            return
        needs_rebuild = self._rebuild is not None and self._num_faults >= MAX_FAULTS
        for one in self._utterances() if needs_rebuild else utterances:
            reason = f"the backend failed ({describe(fault)}); ask again, or load the model again"
            one.fail(_engine_error(reason, fault))
            self._return(one)
        if needs_rebuild:
            self._replace_backend()

    def _replace_backend(self) -> None:
        assert self._rebuild is not None
        log.warning("the backend failed %d times in a row and is rebuilt", self._num_faults)
        self.num_rebuilds += 1
        for one in self._utterances():
            one.slot = None
        try:
            self.backend = self._rebuild()
            if self._head is not None:
                self.backend.watch(self._head)
        except Exception as error:
            self._break(error, f"the backend could not be rebuilt ({describe(error)})")
        self._pipeline, self._num_faults = Pipeline(self.backend), 0
        gc.unfreeze()  # a server's old backend is among what was frozen at its start

    def _break(self, fault: BaseException, reason: str) -> None:
        """Fail all utterances, now and later."""
        self._failure = _engine_error(reason, fault)
        self._pipeline = Pipeline(self.backend)
        for one in self._utterances():
            one.fail(_engine_error(reason, fault))
            self._return(one)


def _engine_error(reason: str, fault: BaseException) -> EngineError:
    error = EngineError(reason)
    error.__cause__ = fault
    return error
