"""The limits of an engine: streams, queue, waits and turn lengths; and its load against them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vivace.arguments import check_choice
from vivace.speech import check_least

Profile = Literal["latency", "balanced", "throughput"]


@dataclass(frozen=True, slots=True)
class Pace:
    """The turn lengths of a profile."""

    max_frames: int  # of one turn
    max_ahead: int  # frames made before their reader requests them
    min_frames: int  # of a turn in which no reader waits for its first audio


PACES: dict[Profile, Pace] = {
    "latency": Pace(max_frames=4, max_ahead=4, min_frames=1),
    "balanced": Pace(max_frames=16, max_ahead=16, min_frames=4),
    "throughput": Pace(max_frames=32, max_ahead=32, min_frames=16),
}


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What an engine accepts, and how long its turns are."""

    max_streams: int | None = None  # running at once; None: as many as the backend has slots
    max_queue: int = 256  # waiting for a slot
    max_wait_s: float = 60.0  # for a slot, while no running stream is read
    max_idle_s: float = 300.0  # that an unread stream keeps its slot while others wait for one
    profile: Profile = "balanced"

    def __post_init__(self) -> None:
        if self.max_streams is not None:
            check_least("max_streams", self.max_streams, 1)
        check_least("max_queue", self.max_queue, 0)
        check_choice("profile", self.profile, PACES)


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The load of an engine."""

    num_slots: int
    num_running: int
    num_waiting: int
    max_queue: int
    wait_s: float = 0.0  # estimated, of a request made now

    @property
    def is_full(self) -> bool:
        """Whether a request made now would be refused because the queue is full."""
        return self.num_running + self.num_waiting >= self.num_slots + self.max_queue

    def refuses(self, max_wait_s: float) -> bool:
        """Whether a request made now, which may wait `max_wait_s`, would be refused."""
        return self.is_full or self.wait_s > max_wait_s
