"""The only caller of a backend: many sessions, a turn at a time.

There is no thread of its own. Whoever waits for frames and finds nobody at work does the next turn
for everybody; the others sleep until their frames are there or the work is passed on to them. So a
single stream costs no switch of threads, and streams read at the same time share their turns.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Condition, RLock

from vivace.backends.base import Backend
from vivace.device import is_context_lost, use_threads
from vivace.engine.pipeline import Pipeline, Seat, Spent
from vivace.engine.scheduler import EngineLimits, Plan, Scheduler, Ticket
from vivace.engine.session import Session
from vivace.errors import EngineError, QueueFullError, TTSError


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
        self._lock = RLock()
        self._turn_over = Condition(self._lock)
        self._is_inside = False  # this thread is between two lines that belong together
        self._is_at_work = False  # a turn is under way, without the lock
        self._failure: Exception | None = None  # of the backend; nothing runs after it

    # -- what a session does -----------------------------------------------------------------

    def join(self, session: Session) -> None:
        """Take a session in, or raise a QueueFullError."""
        self.check_process()
        with self._inside():
            self._check()
            self._sweep()
            self._scheduler.submit(session.ticket)
            self._seats[session.ticket] = Seat(session, since=time.perf_counter())

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
                    elif not self._take_turn():
                        self._wait_for_place(self._seats[ticket])
            finally:
                ticket.num_wanted = 0
                self._pass_on()

    def extend(self, session: Session, text_ids: Sequence[int], is_last: bool) -> None:
        """More of a live text."""
        with self._inside():
            while self._is_at_work:
                self._wait(self._turn_over)
            self._check()
            seat = self._seats[session.ticket]
            assert seat.slot is not None
            self.backend.extend(seat.slot, text_ids, is_last)
            session.ticket.is_blocked = session.is_dry = False

    def leave(self, session: Session) -> None:
        """Give the place back; from any thread, at any time, also from a garbage collection."""
        session.is_cancelled = True
        if os.getpid() != self._pid:  # a forked child's copy: its lock may be held for ever
            return
        with self._lock:
            self._leaving.append(session.ticket)
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
        """Plan under the lock, work without it, wake under it again; False: nothing to do."""
        self._sweep()
        pipeline, plan = self._pipeline, Plan()
        if pipeline.can_start:
            plan = self._scheduler.plan(is_rendering=pipeline.is_rendering)
        if not plan.admitted and not plan.stepped and not pipeline.is_busy:
            return False
        admitted, stepped = (
            [self._seats[ticket] for ticket in tickets] for tickets in (plan.admitted, plan.stepped)
        )
        self._is_at_work, self._is_inside = True, False
        self._lock.release()
        failure = None
        try:
            with use_threads(self.threads):
                over = pipeline.run(admitted, stepped, plan.num_frames)
            self._leaving.extend(seat.session.ticket for seat in over)
        except Exception as error:
            failure = error
        finally:
            self._lock.acquire()
            self._is_at_work, self._is_inside = False, True
            if failure is not None:
                self._fail(failure)
            self._sweep()
            self._wake_ready()
        return True

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
        while self._leaving and not self._is_at_work:
            ticket = self._leaving.popleft()
            seat = self._seats.pop(ticket, None)
            if seat is None:
                continue
            has_room = True
            self._scheduler.leave(ticket, time.perf_counter() - seat.since)
            if seat.slot is not None and self._failure is None:
                self.backend.release(seat.slot)
            seat.slot = None
        if has_room:
            self._pass_on()

    # -- sleeping and waking -----------------------------------------------------------------

    def _sleep(self, session: Session, seconds: float | None = None) -> None:
        """Until its frames are there, or the work is passed on to it."""
        bell = self._asleep[session] = Condition(self._lock)
        try:
            self._wait(bell, seconds)
        finally:
            self._asleep.pop(session, None)

    def _wait(self, condition: Condition, seconds: float | None = None) -> None:
        self._is_inside = False
        condition.wait(seconds)
        self._is_inside = True

    def _wait_for_place(self, seat: Seat) -> None:
        """All places are taken by streams that nobody reads just now."""
        left = seat.since + self.limits.max_wait_s - time.perf_counter()
        if left <= 0:
            raise QueueFullError(self.num_waiting, self.limits.max_wait_s)
        self._sleep(seat.session, left)

    def _wake_ready(self) -> None:
        """Those who have what they wait for; whoever did the turn goes on for the others."""
        for session, bell in list(self._asleep.items()):
            if session.is_ready or self._failure is not None:
                bell.notify()
        self._turn_over.notify_all()

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

    def _fail(self, error: Exception) -> None:
        """The backend broke: everybody hears why, and nothing is run on it again."""
        if isinstance(error, TTSError):
            reason = error
        else:
            words = f"{type(error).__name__}: {error}"
            remedy = "start the process" if is_context_lost() else "load the model"
            reason = EngineError(f"the backend broke ({words}); {remedy} again to go on")
            reason.__cause__ = error
        self._failure = reason
        self._pipeline.drop()
        for seat in self._seats.values():
            seat.session.fail(reason)
        self._leaving.extend(self._seats)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
