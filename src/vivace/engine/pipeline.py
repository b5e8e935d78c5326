"""All calls of the backend, in the order that keeps it busy; no locks and no plans.

Frames and samples can be on their way at once: while those of the last turn are rendered, the next
frames are made. A backend that cannot do both at once has done what it was asked when it returns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from vivace.backends.base import Backend, Frames, Samples, Slot
from vivace.engine.faults import as_tts_error, describe, is_interrupt
from vivace.engine.session import Session
from vivace.errors import TTSError


@dataclass(slots=True)
class Spent:
    """Seconds in calls of the backend since the engine was made, by what was waited for."""

    admit_s: float = 0.0
    step_s: float = 0.0
    render_s: float = 0.0
    num_turns: int = 0


@dataclass(slots=True, eq=False)
class Seat:
    """A session that was taken in."""

    session: Session
    since: float
    slot: Slot | None = None  # while it has one


@dataclass(frozen=True, slots=True, eq=False)
class Flight:
    """Frames on their way."""

    seats: Sequence[Seat]
    wait: Callable[[], Frames]


@dataclass(frozen=True, slots=True, eq=False)
class Rendering:
    """Frames whose samples are on their way."""

    seats: Sequence[Seat]
    frames: Frames
    wait: Callable[[], list[Samples]]


class Pipeline:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._flight: Flight | None = None
        self._rendering: Rendering | None = None
        self._at_stake: Sequence[Seat] = ()  # in the call of the backend under way
        self.spent = Spent()

    @property
    def can_start(self) -> bool:
        """Whether frames started now would hold up nothing that was started before."""
        return self._flight is None and (self._rendering is None or self._backend.shares_work)

    @property
    def is_rendering(self) -> bool:
        return self._rendering is not None

    @property
    def is_busy(self) -> bool:
        return self._flight is not None or self._rendering is not None

    def run(self, admitted: Sequence[Seat], stepped: Sequence[Seat], num_frames: int) -> list[Seat]:
        """Start these, then wait for one thing; returns the seats whose sessions are over."""
        over = self._run(admitted, stepped, num_frames)
        self._at_stake = ()
        return over

    def _run(
        self, admitted: Sequence[Seat], stepped: Sequence[Seat], num_frames: int
    ) -> list[Seat]:
        refused = self._admit(admitted) if admitted else []
        seats = [seat for seat in stepped if seat.slot is not None]
        if seats:
            self._start(seats, num_frames)
        if self._rendering is not None:
            return refused + self._hand_out(self._rendering)
        if self._flight is not None:
            self._collect(self._flight)
            if self._rendering is not None and not self._backend.shares_work:
                return refused + self._hand_out(self._rendering)
        return refused

    def drop(self) -> None:
        """Forget what is on its way."""
        self._flight = self._rendering = None

    def give_up(self) -> Sequence[Seat]:
        """After a run that raised: those whose state in the backend is not known any more."""
        seats, self._at_stake = self._at_stake, ()
        if self._flight is not None and self._flight.seats is seats:
            self._flight = None
        if self._rendering is not None and self._rendering.seats is seats:
            self._rendering = None
        return seats

    def _admit(self, seats: Sequence[Seat]) -> list[Seat]:
        """A prompt that the backend refuses is the matter of its own session alone."""
        self._at_stake = seats
        began = time.perf_counter()
        try:
            slots = self._backend.admit_many(
                [(seat.session.opening.prompt, seat.session.sampling) for seat in seats]
            )
        except Exception as error:
            if is_interrupt(error):
                raise
            if len(seats) > 1:  # whose fault it is shows when each is read alone
                return [refused for seat in seats for refused in self._admit([seat])]
            slots = [error]
        admit_s = time.perf_counter() - began
        self.spent.admit_s += admit_s
        refused = []
        for seat, slot in zip(seats, slots, strict=True):
            seat.since, seat.session.admit_ms = began, 1000 * admit_s
            if isinstance(slot, Exception):
                refused.append((seat, slot))
            else:
                seat.slot = slot
        for seat, reason in refused:
            if is_interrupt(reason):
                self._at_stake = [seat for seat, _ in refused]
                raise reason
            seat.session.fail(_as_refusal(reason))
        return [seat for seat, _ in refused]

    def _start(self, seats: Sequence[Seat], num_frames: int) -> None:
        self._at_stake = seats
        with self._clock("step_s"):
            wait = self._backend.start_step(_slots(seats), num_frames)
        self._flight = Flight(seats, wait)
        self.spent.num_turns += 1

    def _collect(self, flight: Flight) -> None:
        """Frames are there: what becomes of each slot is known, and they are rendered."""
        self._at_stake = flight.seats
        with self._clock("step_s"):
            frames = flight.wait()
        self._flight = None
        rows = [row for row, seat in enumerate(flight.seats) if seat.slot is not None]
        seats, frames = [flight.seats[row] for row in rows], frames.take(rows)
        for seat, count, status in zip(seats, frames.lengths, frames.status, strict=True):
            ticket = seat.session.ticket
            ticket.num_made += count
            ticket.num_buffered += count
            ticket.is_blocked = status == "waiting"
            ticket.is_done = status not in ("running", "waiting")
        if seats:
            with self._clock("render_s"):
                wait = self._backend.start_render(_slots(seats), frames)
            self._rendering = Rendering(seats, frames, wait)

    def _hand_out(self, rendering: Rendering) -> list[Seat]:
        """Samples are there."""
        self._at_stake = rendering.seats
        with self._clock("render_s"):
            samples = rendering.wait()
        self._rendering = None
        frames = rendering.frames
        for row, seat in enumerate(rendering.seats):
            seat.session.receive(frames.of(row), samples[row], frames.status[row])
        return [seat for seat in rendering.seats if seat.session.is_over]

    @contextmanager
    def _clock(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            setattr(self.spent, name, getattr(self.spent, name) + time.perf_counter() - began)


def _slots(seats: Sequence[Seat]) -> list[Slot]:
    return [seat.slot for seat in seats if seat.slot is not None]


def _as_refusal(error: Exception) -> Exception:
    if isinstance(error, TTSError):
        return error
    return as_tts_error(error, f"the backend could not read the prompt ({describe(error)})")
