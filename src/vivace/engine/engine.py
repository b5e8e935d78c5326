"""The only caller of a backend: many sessions, a turn at a time.

There is no thread of its own. Whoever waits for frames and finds nobody at work does the next turn
for everybody; the others wait until it is over. So a single stream costs no switch of threads, and
streams that are read at the same time share their turns.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition

from vivace.backends.base import Backend, Slot
from vivace.device import use_threads
from vivace.engine.scheduler import EngineLimits, Plan, Scheduler, Ticket
from vivace.engine.session import Session
from vivace.errors import EngineError, QueueFullError, TTSError


@dataclass(slots=True)
class Spent:
    """Seconds in the backend since the engine was made, by what it did."""

    admit_s: float = 0.0
    step_s: float = 0.0
    render_s: float = 0.0
    num_turns: int = 0


@dataclass(slots=True)
class Seat:
    """A session that was taken in."""

    session: Session
    since: float
    slot: Slot | None = None


class Engine:
    def __init__(
        self,
        backend: Backend,
        limits: EngineLimits | None = None,
        *,
        threads: int | None = None,  # of the CPU, for one operation; None: PyTorch's own number
    ) -> None:
        self.backend = backend
        self._num_threads = threads
        self.limits = limits or EngineLimits()
        self.spent = Spent()
        num_places = min(self.limits.max_streams or backend.max_streams, backend.max_streams)
        self._scheduler = Scheduler(self.limits, num_places, runs_ahead=backend.shares_work)
        self._seats: dict[Ticket, Seat] = {}
        self._leaving: deque[Ticket] = deque()
        self._changed = Condition()
        self._is_inside = False  # this thread is between two lines that belong together
        self._is_at_work = False  # a turn is under way, without the lock
        self._failure: Exception | None = None  # of the backend; nothing runs after it

    # -- what a session does -----------------------------------------------------------------

    def join(self, session: Session) -> None:
        """Take a session in, or raise a QueueFullError."""
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
                while not session.is_ready(num_frames):
                    self._check()
                    if self._is_at_work:
                        self._wait()
                    elif not self._take_turn():
                        self._wait_for_place(self._seats[ticket])
            finally:
                ticket.num_wanted = 0

    def extend(self, session: Session, text_ids: Sequence[int], is_last: bool) -> None:
        """More of a live text."""
        with self._inside():
            while self._is_at_work:
                self._wait()
            self._check()
            seat = self._seats[session.ticket]
            assert seat.slot is not None
            self.backend.extend(seat.slot, text_ids, is_last)
            session.ticket.is_blocked = False

    def leave(self, session: Session) -> None:
        """Give the place back; from any thread, at any time, also from a garbage collection."""
        session.is_cancelled = True
        with self._changed:
            self._leaving.append(session.ticket)
            if not self._is_inside:  # else this very thread is, and sweeps when it is through
                self._sweep()
                self._changed.notify_all()

    @property
    def num_running(self) -> int:
        return len(self._scheduler.running)

    @property
    def num_waiting(self) -> int:
        return len(self._scheduler.queue)

    # -- a turn ------------------------------------------------------------------------------

    def _take_turn(self) -> bool:
        """Plan under the lock, work without it, hand out under it again; False: nothing to do."""
        self._sweep()
        plan = self._scheduler.plan()
        if not plan.admitted and not plan.stepped:
            return False
        self._is_at_work, self._is_inside = True, False
        self._changed.release()
        try:
            with use_threads(self._num_threads):
                failure = self._work(plan)
        finally:
            self._changed.acquire()
            self._is_at_work, self._is_inside = False, True
            self._sweep()
            self._changed.notify_all()
        if failure is not None:
            self._fail(failure)
        return True

    @contextmanager
    def _inside(self) -> Iterator[None]:
        with self._changed:
            self._is_inside = True
            try:
                yield
            finally:
                self._is_inside = False
                self._sweep()

    def _wait(self, seconds: float | None = None) -> None:
        self._is_inside = False
        self._changed.wait(seconds)
        self._is_inside = True

    def _wait_for_place(self, seat: Seat) -> None:
        """All places are taken by streams that nobody reads just now."""
        left = seat.since + self.limits.max_wait_s - time.perf_counter()
        if left <= 0:
            raise QueueFullError(self.num_waiting, self.limits.max_wait_s)
        self._wait(left)

    def _work(self, plan: Plan) -> Exception | None:
        """All calls of the backend; the exception if it broke."""
        for ticket in plan.admitted:
            self._admit(self._seats[ticket])
        seats = [self._seats[ticket] for ticket in plan.stepped]
        seats = [seat for seat in seats if seat.slot is not None]
        if not seats:
            return None
        slots = [seat.slot for seat in seats if seat.slot is not None]
        began = time.perf_counter()
        try:
            frames = self.backend.step(slots, plan.num_frames)
            stepped = time.perf_counter()
            samples = self.backend.render(slots, frames)
        except Exception as error:
            return error
        self.spent.num_turns += 1
        self.spent.step_s += stepped - began
        self.spent.render_s += time.perf_counter() - stepped
        for row, seat in enumerate(seats):
            seat.session.receive(frames.of(row), samples[row], frames.status[row])
            if seat.session.is_over:
                self._leaving.append(seat.session.ticket)
        return None

    def _admit(self, seat: Seat) -> None:
        """A prompt that the backend refuses is the matter of its own session alone."""
        seat.since = time.perf_counter()
        try:
            seat.slot = self.backend.admit(seat.session.opening.prompt, seat.session.sampling)
        except Exception as error:
            seat.session.fail(error)
            self._leaving.append(seat.session.ticket)
        admit_s = time.perf_counter() - seat.since
        self.spent.admit_s += admit_s
        seat.session.admit_ms = 1000 * admit_s

    def _sweep(self) -> None:
        """Free the places of those who left, unless somebody is at work with them."""
        while self._leaving and not self._is_at_work:
            ticket = self._leaving.popleft()
            seat = self._seats.pop(ticket, None)
            if seat is None:
                continue
            self._scheduler.leave(ticket, time.perf_counter() - seat.since)
            if seat.slot is not None and self._failure is None:
                self.backend.release(seat.slot)

    def _fail(self, error: Exception) -> None:
        """The backend broke: everybody hears why, and nothing is run on it again."""
        if isinstance(error, TTSError):
            reason = error
        else:
            words = f"{type(error).__name__}: {error}"
            reason = EngineError(f"the backend broke ({words}); load the model again to go on")
            reason.__cause__ = error
        self._failure = reason
        for seat in self._seats.values():
            seat.session.fail(reason)
        self._leaving.extend(self._seats)
        self._sweep()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
