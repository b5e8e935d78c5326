"""One engine on one GPU, simulated turn by turn: its own scheduler, with figures for a backend.

Mirrors `engine/engine.py` and `engine/pipeline.py`: frames are started and collected, then rendered
while the next ones are made. Time is in milliseconds, and nothing here waits.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from vivace.engine.chunks import chunk_sizes
from vivace.engine.scheduler import EngineLimits, Scheduler
from vivace.engine.utterance import State, Utterance
from vivace.errors import RequestError
from vivace.options import RAMP
from vivace.plan.figures import Figures

FRAME_MS = 80.0
LITTLE = 1e-9
NEXT_CHUNK_MS = 0.1  # until a reader asks again

Event = Callable[[], None]


@dataclass(slots=True, eq=False)
class Talk:
    """An utterance as the scheduler sees one, and what its listener heard."""

    asked_ms: float
    num_frames: int
    on_end: Callable[[Talk], None] | None = None
    state: State = State.QUEUED
    num_wanted: int = 0
    num_made: int = 0
    num_rendered: int = 0
    num_read: int = 0
    first_ms: float = 0.0  # from the request to the first audio; 0: there is none yet
    num_underruns: int = 0
    _played_until: float = 0.0
    _sizes: Iterator[int] = field(default_factory=lambda: chunk_sizes(RAMP))

    @property
    def num_ahead(self) -> int:
        return self.num_made - self.num_read

    @property
    def num_missing(self) -> int:
        """Frames that its reader waits for; a queued one is stepped in the turn that admits it."""
        is_open = self.state in (State.QUEUED, State.RUNNING)
        return max(0, self.num_wanted - self.num_ahead) if is_open else 0

    @property
    def is_ready(self) -> bool:
        num_there = self.num_rendered - self.num_read
        return num_there >= self.num_wanted or self.num_rendered == self.num_frames

    def ask(self) -> None:
        self.num_wanted = next(self._sizes)

    def make(self, num_frames: int) -> int:
        count = min(num_frames, self.num_frames - self.num_made)
        self.num_made += count
        if self.num_made == self.num_frames:
            self.state = State.ENDING
        return count

    def hear(self, now: float) -> None:
        count = min(self.num_wanted, self.num_rendered - self.num_read)
        self.num_read, self.num_wanted = self.num_read + count, 0
        if not self.first_ms:
            self.first_ms, self._played_until = now - self.asked_ms, now
        elif count and now > self._played_until:
            self.num_underruns, self._played_until = self.num_underruns + 1, now
        self._played_until += count * FRAME_MS

    @property
    def ends_playing_ms(self) -> float:
        return self._played_until


class Replica:
    """Runs what is scheduled by `at` and asked by `speak` until nothing is left, or a time."""

    def __init__(self, figures: Figures, num_slots: int | None = None) -> None:
        self.figures = figures
        self.now = 0.0
        self.num_most = 0  # streams at once
        self._scheduler = Scheduler(EngineLimits(), num_slots or figures.num_slots)
        self._events: list[tuple[float, int, Event]] = []
        self._order = itertools.count()
        self._frames: tuple[Sequence[Talk], int] | None = None  # being made
        self._samples: tuple[Sequence[Talk], list[int]] | None = None  # being rendered
        self._step_ms = self._render_ms = 0.0  # of work that the device has left

    def at(self, time_ms: float, event: Event) -> None:
        heapq.heappush(self._events, (time_ms, next(self._order), event))

    def speak(self, talk: Talk, late_ms: float = 0.0) -> None:
        """After half of the host's time; the other half is added to first audio."""
        talk.ask()
        self.at(talk.asked_ms + self.figures.host_ms / 2 + late_ms, lambda: self._queue(talk))

    def run(self, until_ms: float = float("inf")) -> None:
        while self.now < until_ms:
            self._happen()
            if not self._take_turn():
                if not self._events:
                    return
                self.now = max(self.now, self._events[0][0])

    @property
    def num_open(self) -> int:
        return len(self._scheduler.running) + len(self._scheduler.queue)

    def _queue(self, talk: Talk) -> None:
        self._scheduler.queue.append(cast(Utterance, talk))
        self.num_most = max(self.num_most, self.num_open)

    def _happen(self) -> None:
        while self._events and self._events[0][0] <= self.now:
            heapq.heappop(self._events)[2]()

    def _take_turn(self) -> bool:
        """As the engine's own; False: there is nothing to do."""
        if self._frames is None:
            self._start()
        if self._samples is not None:
            self._deliver(*self._samples)
        elif self._frames is not None:
            self._collect(*self._frames)
        else:
            return False
        return True

    def _start(self) -> None:
        plan = self._scheduler.plan(is_rendering=self._samples is not None)
        admitted = cast("Sequence[Talk]", plan.admitted)
        stepped = cast("Sequence[Talk]", plan.stepped)
        for talk in admitted:
            talk.state = State.RUNNING
        if admitted:
            self._step_ms += self.figures.admit(len(admitted))
        if stepped:
            self._step_ms += self.figures.step(len(stepped), plan.num_frames)
            self._frames = stepped, plan.num_frames

    def _collect(self, talks: Sequence[Talk], num_frames: int) -> None:
        while self._step_ms > LITTLE:
            self._pass()
        self._frames = None
        self._samples = talks, [talk.make(num_frames) for talk in talks]
        self._render_ms = self.figures.render(len(talks), num_frames)

    def _deliver(self, talks: Sequence[Talk], counts: Sequence[int]) -> None:
        while self._render_ms > LITTLE:
            self._pass()
        self._samples = None
        for talk, count in zip(talks, counts, strict=True):
            talk.num_rendered += count
        for talk in list(cast("Sequence[Talk]", self._scheduler.running)):
            if talk.num_wanted and talk.is_ready:
                self._hand(talk)

    def _pass(self) -> None:
        """Until the first of what the device does is done; frames and codec share it evenly."""
        left = [ms for ms in (self._step_ms, self._render_ms) if ms > LITTLE]
        self._wait(min(left) * len(left), 1 / len(left))

    def _wait(self, ms: float, speed: float = 1.0) -> None:
        self.now += ms
        self._step_ms = max(0.0, self._step_ms - ms * speed)
        self._render_ms = max(0.0, self._render_ms - ms * speed)

    def _hand(self, talk: Talk) -> None:
        self._wait(self.figures.reader_ms)
        talk.hear(self.now + self.figures.host_ms / 2)
        if talk.num_read < talk.num_frames:
            self.at(self.now + NEXT_CHUNK_MS, lambda: self._ask(talk))
            return
        talk.state = State.DONE
        self._scheduler.remove(cast(Utterance, talk))
        if talk.on_end is not None:
            talk.on_end(talk)

    def _ask(self, talk: Talk) -> None:
        talk.ask()
        if talk.is_ready:
            self._hand(talk)


def percentile(values: Sequence[float], share: int) -> float:
    """As `vivace bench` has it."""
    if not values:
        raise RequestError("nothing was spoken in the simulation; give it more calls or time")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * share // 100)]
