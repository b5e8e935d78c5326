"""Who is admitted, who is stepped and for how many frames: plain numbers, no tensors, no threads.

Rules: first come, first admitted; every stream that may run is stepped in every turn; and while
somebody waits for their first audio a turn is as short as they asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from vivace.errors import QueueFullError, RequestError

Profile = Literal["latency", "balanced", "throughput"]


@dataclass(frozen=True, slots=True)
class Pace:
    """What a profile means."""

    max_frames: int  # of one turn
    ahead: int  # frames made before their reader asks, for streams that run beside others


PACES: dict[Profile, Pace] = {
    "latency": Pace(max_frames=4, ahead=4),
    "balanced": Pace(max_frames=16, ahead=8),
    "throughput": Pace(max_frames=32, ahead=32),
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
    num_buffered: int = 0  # frames made and not yet read
    has_begun: bool = False  # its first frame was made
    is_blocked: bool = False  # it waits for text

    @property
    def num_missing(self) -> int:
        return 0 if self.is_blocked else max(0, self.num_wanted - self.num_buffered)


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

    def plan(self) -> Plan:
        """What to do next; nothing if no reader waits for anything that can be made."""
        admitted = []
        while self.queue and self._has_place():
            ticket = self.queue.popleft()
            self.running.append(ticket)
            admitted.append(ticket)
        missing = [ticket for ticket in self.running if ticket.num_missing]
        if not missing:
            return Plan(tuple(admitted))
        num_frames = self._turn_length(missing)
        return Plan(tuple(admitted), tuple(self._company(missing)), num_frames)

    def _has_place(self) -> bool:
        return len(self.running) < self.num_places

    def _turn_length(self, missing: Iterable[Ticket]) -> int:
        """As long as nobody gets what they wait for later than they could."""
        new = [ticket.num_missing for ticket in missing if not ticket.has_begun]
        shortest = min(new or [ticket.num_missing for ticket in missing])
        return max(1, min(shortest, PACES[self.limits.profile].max_frames))

    def _company(self, missing: list[Ticket]) -> list[Ticket]:
        """Those who wait, and those whose readers will be back soon."""
        ahead = PACES[self.limits.profile].ahead if self.runs_ahead else 0
        return [
            ticket
            for ticket in self.running
            if ticket.num_missing
            or (ticket.has_begun and not ticket.is_blocked and ticket.num_buffered < ahead)
        ]

    def _estimate_wait_s(self) -> float:
        return max(0.1, self._mean_hold_s * (len(self.queue) + 1) / self.num_places)
