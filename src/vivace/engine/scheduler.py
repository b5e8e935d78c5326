"""Who is admitted, who is stepped and for how many frames: plain numbers, no tensors, no threads.

Rules: first come, first admitted; every stream that may run is stepped in every turn; while
somebody waits for their first audio a turn is as short as they asked; and no turn is longer than
the frames that a stream has been given so far, or its sound would run out. Where company costs
little, frames are also made ahead of their readers, beside others or while the last are rendered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from vivace.errors import QueueFullError, RequestError

Profile = Literal["latency", "balanced", "throughput"]


@dataclass(frozen=True, slots=True)
class Pace:
    """What a profile means."""

    max_frames: int  # of one turn
    ahead: int  # frames made before their reader asks
    spare: int  # frames of a turn, at least, in which nobody waits for first audio


PACES: dict[Profile, Pace] = {
    "latency": Pace(max_frames=4, ahead=4, spare=1),
    "balanced": Pace(max_frames=16, ahead=16, spare=4),
    "throughput": Pace(max_frames=32, ahead=32, spare=16),
}


@dataclass(frozen=True, slots=True)
class EngineLimits:
    max_streams: int | None = None  # at once; None: as many as the backend has places
    max_queue: int = 256  # waiting for a place
    max_wait_s: float = 60.0  # for one, while those who have one do nothing
    profile: Profile = "balanced"

    def __post_init__(self) -> None:
        if (self.max_streams is not None and self.max_streams < 1) or self.max_queue < 0:
            raise RequestError(
                "max_streams must be 1 or more and max_queue 0 or more, "
                f"not {self.max_streams} and {self.max_queue}"
            )
        if self.profile not in PACES:
            raise RequestError(f"profile must be one of {', '.join(PACES)}, not {self.profile!r}")


@dataclass(slots=True, eq=False)
class Ticket:
    """A stream in the scheduler's eyes."""

    num_wanted: int = 0  # frames that its reader waits for; 0 if nobody does
    num_made: int = 0  # frames, perhaps still being rendered
    num_buffered: int = 0  # of these, not yet read
    has_begun: bool = False  # its first audio is there
    is_blocked: bool = False  # it waits for text
    is_done: bool = False  # it makes no more frames

    @property
    def can_run(self) -> bool:
        return not self.is_blocked and not self.is_done

    @property
    def num_missing(self) -> int:
        return max(0, self.num_wanted - self.num_buffered) if self.can_run else 0


@dataclass(frozen=True, slots=True)
class Plan:
    """One turn."""

    admitted: tuple[Ticket, ...] = ()  # in this turn, so also stepped
    stepped: tuple[Ticket, ...] = ()
    num_frames: int = 0


@dataclass(slots=True)
class Scheduler:
    limits: EngineLimits
    num_places: int
    runs_ahead: bool = True  # a frame more beside others costs next to nothing
    queue: deque[Ticket] = field(default_factory=deque)
    running: list[Ticket] = field(default_factory=list)
    _mean_hold_s: float = 1.0  # how long a place was held, lately

    def submit(self, ticket: Ticket) -> None:
        """Stand in line; a QueueFullError if the line is too long."""
        if self._has_place() or len(self.queue) < self.limits.max_queue:
            self.queue.append(ticket)
            return
        raise QueueFullError(len(self.queue), self._estimate_wait_s())

    def leave(self, ticket: Ticket, held_s: float = 0.0) -> None:
        """Give the place, or the place in line, to the next; leaving twice changes nothing."""
        if ticket in self.running:
            self.running.remove(ticket)
            self._mean_hold_s += 0.2 * (held_s - self._mean_hold_s)
        elif ticket in self.queue:
            self.queue.remove(ticket)

    def plan(self, *, is_rendering: bool = False) -> Plan:
        """What to do next; nothing if no reader waits for anything that can be made.

        While the last frames are rendered, the next ones are made for readers to come.
        """
        admitted = []
        while self.queue and self._has_place():
            ticket = self.queue.popleft()
            self.running.append(ticket)
            admitted.append(ticket)
        missing = [ticket for ticket in self.running if ticket.num_missing]
        if not missing and not is_rendering:
            return Plan(tuple(admitted))
        company = self._company()
        num_frames = self._turn_length(missing, company) if company else 0
        return Plan(tuple(admitted), tuple(company), num_frames)

    def _has_place(self) -> bool:
        return len(self.running) < self.num_places

    def _turn_length(self, missing: Sequence[Ticket], company: Sequence[Ticket]) -> int:
        """As long as no first audio comes later than it could and nobody's sound runs out."""
        pace = PACES[self.limits.profile]
        most = min(max(ticket.num_missing, ticket.num_made) for ticket in company)
        new = [ticket.num_missing for ticket in missing if not ticket.has_begun]
        if new:
            return min(*new, most, pace.max_frames)
        shortest = min((ticket.num_missing for ticket in missing), default=1)
        wanted = max(shortest, pace.spare if self.runs_ahead else 1)
        return min(wanted, most, pace.max_frames)

    def _company(self) -> list[Ticket]:
        """Those who wait, and those whose readers will be back soon."""
        ahead = PACES[self.limits.profile].ahead if self.runs_ahead else 0
        company = [
            ticket
            for ticket in self.running
            if ticket.num_missing
            or (ticket.num_made and ticket.can_run and ticket.num_buffered < ahead)
        ]
        # First audio that is being rendered has the device to itself, unless somebody waits.
        return company if any(ticket.num_missing or ticket.has_begun for ticket in company) else []

    def _estimate_wait_s(self) -> float:
        return max(0.1, self._mean_hold_s * (len(self.queue) + 1) / self.num_places)
