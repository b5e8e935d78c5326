"""The load of an engine as plain numbers, which its process publishes for the other processes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vivace.engine.limits import EngineLoad as EngineLoad  # for vivace.serve

if TYPE_CHECKING:  # the supervisor of a server does not import PyTorch
    from vivace.engine.engine import Engine
    from vivace.engine.utterances.client import EngineClient as EngineClient  # for vivace.serve

NUM_AHEAD = 64  # further requests from which the growth of the wait is measured


@dataclass(frozen=True, slots=True)
class EngineFigures:
    num_slots: float = 0.0
    num_running: float = 0.0
    num_waiting: float = 0.0
    max_queue: float = 0.0
    wait_s: float = 0.0  # estimated, of a request made now
    full_wait_s: float = 0.0  # of the first request that finds no free slot
    per_request_s: float = 0.0  # added by every request after that one
    busy_since: float = 0.0  # when the current turn began; 0: idle

    @classmethod
    def measure(cls, engine: Engine) -> EngineFigures:
        load = engine.capacity()
        num_free = max(0, load.num_slots - load.num_running - load.num_waiting)
        full_wait_s = engine.capacity(num_free).wait_s
        per_request_s = (engine.capacity(num_free + NUM_AHEAD).wait_s - full_wait_s) / NUM_AHEAD
        return cls(
            *(load.num_slots, load.num_running, load.num_waiting, load.max_queue, load.wait_s),
            *(full_wait_s, max(0.0, per_request_s), engine.busy_since or 0.0),
        )

    @property
    def values(self) -> tuple[float, ...]:
        return dataclasses.astuple(self)

    def load(self, num_new: int) -> EngineLoad:
        """The load with `num_new` requests that were made after the measurement."""
        num_held, wait_s = self.num_running + self.num_waiting, self.wait_s
        num_over = num_held + num_new - max(self.num_slots, num_held)
        if num_new and num_over >= 0:
            wait_s = self.wait_s if num_held >= self.num_slots else self.full_wait_s
            wait_s += num_over * self.per_request_s
        waiting = int(self.num_waiting) + num_new
        return EngineLoad(
            int(self.num_slots), int(self.num_running), waiting, int(self.max_queue), wait_s
        )
