"""The only caller of a backend: many sessions, a turn at a time.

There is no thread of its own. Whoever waits for frames and finds nobody at work does the next turn
for everybody; the others sleep until their frames are there or the work is passed on to them. So a
single stream costs no switch of threads, and streams read at the same time share their turns.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Condition, RLock, current_thread, main_thread

from vivace.backends.base import Backend
from vivace.device import is_context_lost, use_threads
from vivace.engine.faults import as_tts_error, describe, is_interrupt
from vivace.engine.pipeline import Pipeline, Seat, Spent
from vivace.engine.scheduler import EngineLimits, Plan, Scheduler, Ticket
from vivace.engine.session import Session
from vivace.errors import EngineError, QueueFullError

log = logging.getLogger(__name__)

LONGEST_SLEEP_S = 0.25  # of a thread in which signal handlers run


class Engine:
    def __init__(
        self,
        backend: Backend,
        limits: EngineLimits | None = None,
        *,
        threads: int | None = None,  # of the CPU, for one operation; None: PyTorch's own number
        can_fork: bool = False,  # the backend has no threads and no GPU that a fork would lose
    ) -> None:
        self.backend = backend
        self.threads = threads
        self._can_fork = can_fork
        self._pid = os.getpid()
        self.limits = limits or EngineLimits()
        num_places = min(self.limits.max_streams or backend.max_streams, backend.max_streams)
        self._scheduler = Scheduler(self.limits, num_places, runs_ahead=backend.shares_work)
        self._pipeline = Pipeline(backend)
        self._seats: dict[Ticket, Seat] = {}
        self._asleep: dict[Session, Condition] = {}  # readers, with what wakes them
        self._leaving: deque[Ticket] = deque()
        self._texts: deque[tuple[Seat, Sequence[int], bool]] = deque()  # for the next turn
        self._lock = RLock()
        self._is_inside = False  # lock held, state inconsistent; finalizers only enqueue
        self._is_at_work = False  # a turn is under way, without the lock
        self._failure: EngineError | None = None  # of the backend; nothing runs after it

    # -- what a session does -----------------------------------------------------------------

    def join(self, session: Session) -> None:
        """Take a session in, or raise a QueueFullError; `leave` follows either."""
        self.check_process()
        with self._inside():
            self._check()
            self._sweep()
            if session.is_cancelled:  # by another thread, which found nothing to take out
                return
            self._seats[session.ticket] = Seat(session, since=time.perf_counter())
            self._scheduler.submit(session.ticket)

    def advance(self, session: Session, num_frames: int) -> None:
        """Come back when so many frames are there, or it ended, is cancelled or needs text."""
        ticket = session.ticket
        with self._inside():
            ticket.num_wanted = num_frames
            try:
                while not session.is_ready:
                    self._check()
                    if self._is_at_work:
                        self._sleep(session)
                    elif not self._take_turn() and not session.is_ready:
                        self._wait_for_place(self._seats[ticket])
            finally:
                ticket.num_wanted = 0
                self._pass_on()

    def extend(self, session: Session, text_ids: Sequence[int], is_last: bool) -> None:
        """More of a live text, in time for the next turn."""
        with self._inside():
            self._check()
            if (seat := self._seats.get(session.ticket)) is not None:
                self._texts.append((seat, text_ids, is_last))
                session.is_dry = False

    def leave(self, session: Session) -> None:
        """Give the place back and wake its reader.

        From any thread, at any time: also from a finalizer or a signal handler.
        """
        session.is_cancelled = True
        if os.getpid() != self._pid:  # a forked child's copy: its lock may be held for ever
            return
        with self._lock:
            self._leaving.append(session.ticket)
            if (bell := self._asleep.get(session)) is not None:
                bell.notify()
            if not self._is_inside:  # else this very thread is, and sweeps when it is through
                self._sweep()

    @property
    def num_running(self) -> int:
        return len(self._scheduler.running)

    @property
    def num_waiting(self) -> int:
        return len(self._scheduler.queue)

    @property
    def num_together(self) -> int:
        """How many streams gain from being read at the same time."""
        return self._scheduler.num_places if self.backend.shares_work else 1

    @property
    def spent(self) -> Spent:
        return self._pipeline.spent

    # -- a turn ------------------------------------------------------------------------------

    def _take_turn(self) -> bool:
        """Plan under the lock, work without it, wake under it again; False: nothing to do.

        What interrupts this thread is raised here when the others' matters are settled.
        """
        self._feed()
        self._sweep()
        pipeline, plan, admitted = self._pipeline, Plan(), list[Seat]()
        if pipeline.can_start:
            plan = self._scheduler.plan(is_rendering=pipeline.is_rendering)
            running = [self._seats[ticket] for ticket in self._scheduler.running]
            admitted = [seat for seat in running if seat.slot is None]
        if not admitted and not plan.stepped and not pipeline.is_busy:
            return False
        stepped = [self._seats[ticket] for ticket in plan.stepped]
        fault: BaseException | None = None
        try:
            self._is_at_work, self._is_inside = True, False
            self._lock.release()
            with use_threads(self.threads):
                over = pipeline.run(admitted, stepped, plan.num_frames)
            self._leaving.extend(seat.session.ticket for seat in over)
        except BaseException as error:
            fault = error
        fault = self._lock_again() or fault
        self._is_at_work, self._is_inside = False, True
        try:
            if fault is not None:
                self._settle(fault, pipeline.give_up())
        finally:
            self._sweep()
            self._wake_ready()
            fault = None  # it holds this frame
        return True

    def _lock_again(self) -> BaseException | None:
        """Take the lock whatever comes; what interrupted the wait for it."""
        interrupt = None
        while True:
            try:
                self._lock.acquire()
                return interrupt
            except BaseException as error:
                interrupt = error

    def _feed(self) -> None:
        """Hand the backend the live text that came during the last turn."""
        while self._texts:
            seat, text_ids, is_last = self._texts.popleft()
            if seat.slot is None or seat.session.is_over:
                continue
            try:
                self.backend.extend(seat.slot, text_ids, is_last)
                seat.session.ticket.is_blocked = False
            except BaseException as error:
                self._settle(error, [seat])
                self._wake_ready()

    @contextmanager
    def _inside(self) -> Iterator[None]:
        with self._lock:
            self._is_inside = True
            try:
                yield
            finally:
                self._is_inside = False
                self._sweep()

    def _sweep(self) -> None:
        """Free the places of those who left, unless somebody is at work with them."""
        has_room = False
        try:
            while self._leaving and not self._is_at_work:
                ticket = self._leaving.popleft()
                seat = self._seats.get(ticket)
                if seat is None:
                    continue
                has_room = True
                self._scheduler.leave(ticket, time.perf_counter() - seat.since)
                self._seats.pop(ticket, None)
                self._release(seat)
        finally:
            if has_room:
                self._pass_on()

    def _release(self, seat: Seat) -> None:
        slot, seat.slot = seat.slot, None
        if slot is None or self._failure is not None:
            return
        try:
            self.backend.release(slot)
        except Exception:  # of whoever left, and nobody else's
            log.warning("the backend could not release slot %d", slot, exc_info=True)

    # -- sleeping and waking -----------------------------------------------------------------

    def _sleep(self, session: Session, seconds: float | None = None) -> None:
        """Until its frames are there, or the work is passed on to it."""
        bell = self._asleep[session] = Condition(self._lock)
        try:
            self._wait(bell, seconds)
        finally:
            self._asleep.pop(session, None)

    def _wait(self, condition: Condition, seconds: float | None = None) -> None:
        if current_thread() is main_thread():  # a signal handler may notify just before the wait
            seconds = LONGEST_SLEEP_S if seconds is None else min(seconds, LONGEST_SLEEP_S)
        self._is_inside = False
        try:
            condition.wait(seconds)
        finally:
            self._is_inside = True

    def _wait_for_place(self, seat: Seat) -> None:
        """All places are taken by streams that nobody reads just now."""
        left = seat.since + self.limits.max_wait_s - time.perf_counter()
        if left <= 0:
            raise QueueFullError(self.num_waiting, self.limits.max_wait_s, self.num_running)
        self._sleep(seat.session, left)

    def _wake_ready(self) -> None:
        """Those who have what they wait for; whoever did the turn goes on for the others."""
        for session, bell in list(self._asleep.items()):
            if session.is_ready or self._failure is not None:
                bell.notify()

    def _pass_on(self) -> None:
        """Somebody else does the next turn."""
        if not self._is_at_work:
            for bell in itertools.islice(self._asleep.values(), 1):
                bell.notify()

    # -- after a fork ------------------------------------------------------------------------

    def check_process(self) -> None:
        """An EngineError in a forked child, unless what it was given was idle and can be used."""
        if os.getpid() == self._pid:
            return
        is_free = self._can_fork and self._lock.acquire(blocking=False)
        if is_free:
            is_free = not self._seats and not self._is_at_work
            self._lock.release()
        if not is_free:
            raise EngineError(
                f"this TTS was loaded in process {self._pid} and cannot be used in a child forked "
                "while it speaks, or forked at all if it runs on a GPU or on several threads; "
                "load it in the child, or start children with multiprocessing's 'spawn'"
            )
        self._pid = os.getpid()

    # -- trouble -----------------------------------------------------------------------------

    def _settle(self, fault: BaseException, seats: Sequence[Seat]) -> None:
        """Fail those whose state in the backend is not known any more; raise an interrupt again.

        After a lost context that is everybody, and nothing is run on this backend again.
        """
        words = describe(fault)
        is_own = is_interrupt(fault)
        if is_own:
            message = f"the turn that made this was interrupted ({words}); ask for it again"
        elif is_context_lost():
            message = f"the backend broke ({words}); start the process again to go on"
            self._failure = as_tts_error(fault, message)
            self._pipeline.drop()
            seats = list(self._seats.values())
        else:
            message = f"the backend failed ({words}); ask again, or load the model again"
        for seat in seats:
            seat.session.fail(as_tts_error(fault, message))
        self._leaving.extend(seat.session.ticket for seat in seats)
        if is_own:
            raise fault

    def _check(self) -> None:
        """A fresh error for each: the traceback of one that is raised again grows."""
        if self._failure is not None:
            raise EngineError(str(self._failure)) from self._failure.__cause__
