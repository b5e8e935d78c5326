"""Simulates one engine on one GPU turn by turn, with the real scheduler and measured times.

The simulation mirrors `engine/engine.py` and `engine/turns/pipeline.py`: it starts and collects
frames, then renders them while the next frames are made. Times are in milliseconds of simulated
time.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

from vivace.engine.limits import EngineLimits
from vivace.engine.streams.chunks import chunk_sizes
from vivace.engine.turns.scheduler import FRAME_S, Scheduler
from vivace.errors import RequestError
from vivace.options import RAMP
from vivace.plan.figures import Figures

FRAME_MS = 1000 * FRAME_S
EPSILON_MS = 1e-9
NEXT_CHUNK_MS = 0.1  # until a client requests the next chunk

Callback = Callable[[], None]


@dataclass(slots=True, eq=False)
class SimulatedUtterance:
    """The fields of an utterance that the scheduler reads, and the playback at its client."""

    requested_ms: float
    num_frames: int
    on_end: Callable[[SimulatedUtterance], None] | None = None
    buffer_ms: float | None = None  # audio that the client holds before it reads more; None: all
    num_prompt_rows: int = 47  # as in scripts/make_plan_figures.py
    admitted_at: float = 0.0  # in seconds; 0: not admitted
    is_paused: bool = False  # the simulation pauses no utterance
    read_at: float = 0.0
    num_wanted: int = 0
    num_made: int = 0
    num_rendered: int = 0
    num_read: int = 0
    first_audio_ms: float = 0.0  # from the request to the first audio; 0: none yet
    num_underruns: int = 0
    playback_end_ms: float = 0.0  # of the audio delivered so far
    _sizes: Iterator[int] = field(default_factory=lambda: chunk_sizes(RAMP))

    @property
    def num_ahead(self) -> int:
        return self.num_made - self.num_read

    @property
    def num_missing(self) -> int:
        """Frames that the client waits for. A queued utterance is stepped when admitted."""
        has_all = self.num_made == self.num_frames
        return 0 if has_all else max(0, self.num_wanted - self.num_ahead)

    @property
    def is_running(self) -> bool:
        return self.admitted_at > 0 and self.num_made < self.num_frames

    @property
    def is_unread(self) -> bool:
        return False

    @property
    def is_silent(self) -> bool:
        return False

    def num_turn_frames(self, min_frames: int) -> int:
        return max(self.num_missing, min_frames)

    @property
    def is_ready(self) -> bool:
        num_unread = self.num_rendered - self.num_read
        return num_unread >= self.num_wanted or self.num_rendered == self.num_frames

    def request_chunk(self, now: float) -> None:
        self.num_wanted, self.read_at = next(self._sizes), now

    def make(self, num_frames: int) -> int:
        """Add up to `num_frames` frames and return their number."""
        count = min(num_frames, self.num_frames - self.num_made)
        self.num_made += count
        return count

    def deliver(self, now: float) -> None:
        """Give the requested frames to the client, which plays them in real time."""
        count = min(self.num_wanted, self.num_rendered - self.num_read)
        self.num_read, self.num_wanted = self.num_read + count, 0
        if not self.first_audio_ms:
            self.first_audio_ms, self.playback_end_ms = now - self.requested_ms, now
        elif count and now > self.playback_end_ms:
            self.num_underruns, self.playback_end_ms = self.num_underruns + 1, now
        self.playback_end_ms += count * FRAME_MS


class SimulatedReplica:
    """Runs callbacks of `schedule` and utterances of `speak` until a time or the end."""

    def __init__(self, figures: Figures, num_slots: int | None = None) -> None:
        self.figures = figures
        # a simulation asks for the same few times in every turn
        self._step, self._render = cache(figures.step), cache(figures.render)
        self.now = 0.0
        self.peak_streams = 0
        num_slots = num_slots or figures.num_slots
        self._scheduler: Scheduler[SimulatedUtterance] = Scheduler(EngineLimits(), num_slots)
        self._events: list[tuple[float, int, Callback]] = []
        self._order = itertools.count()
        self._frames: tuple[Sequence[SimulatedUtterance], int] | None = None  # being made
        self._samples: tuple[Sequence[SimulatedUtterance], list[int]] | None = None  # rendering
        self._step_ms = self._render_ms = 0.0  # remaining work of the device

    def schedule(self, time_ms: float, callback: Callback) -> None:
        heapq.heappush(self._events, (time_ms, next(self._order), callback))

    def speak(self, utterance: SimulatedUtterance, late_ms: float = 0.0) -> None:
        """Queue an utterance after half of the host time. `deliver` adds the other half."""
        utterance.request_chunk(utterance.requested_ms)
        arrival_ms = utterance.requested_ms + self.figures.host_ms / 2 + late_ms
        self.schedule(arrival_ms, lambda: self._queue(utterance))

    def run(self, until_ms: float = float("inf")) -> None:
        while self.now < until_ms:
            self._run_due_callbacks()
            if not self._take_turn():
                if not self._events:
                    return
                self.now = max(self.now, self._events[0][0])

    @property
    def num_open(self) -> int:
        return len(self._scheduler.running) + len(self._scheduler.queue)

    def _queue(self, utterance: SimulatedUtterance) -> None:
        self._scheduler.queue.append(utterance)
        self.peak_streams = max(self.peak_streams, self.num_open)

    def _run_due_callbacks(self) -> None:
        while self._events and self._events[0][0] <= self.now:
            heapq.heappop(self._events)[2]()

    def _take_turn(self) -> bool:
        """Run one turn as the engine does. False if there is no work."""
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
        plan = self._scheduler.plan(is_busy=self._samples is not None)
        for utterance in plan.admitted:
            utterance.admitted_at = max(self.now, EPSILON_MS) / 1000
        if plan.admitted:
            self._step_ms += self.figures.admit(len(plan.admitted))
        if plan.stepped:
            self._step_ms += self._step(len(plan.stepped), plan.num_frames)
            self._frames = plan.stepped, plan.num_frames
            self._scheduler.step_s = self._step(len(plan.stepped), 1) / 1000

    def _collect(self, utterances: Sequence[SimulatedUtterance], num_frames: int) -> None:
        while self._step_ms > EPSILON_MS:
            self._run_device()
        self._frames = None
        self._samples = utterances, [utterance.make(num_frames) for utterance in utterances]
        self._render_ms = self._render(len(utterances), num_frames)

    def _deliver(self, utterances: Sequence[SimulatedUtterance], counts: Sequence[int]) -> None:
        while self._render_ms > EPSILON_MS:
            self._run_device()
        self._samples = None
        for utterance, count in zip(utterances, counts, strict=True):
            utterance.num_rendered += count
        for utterance in list(self._scheduler.running):
            if utterance.num_wanted and utterance.is_ready:
                self._deliver_chunk(utterance)

    def _run_device(self) -> None:
        """Advance until frames or codec finish. While both run, they share the device evenly."""
        remaining = [ms for ms in (self._step_ms, self._render_ms) if ms > EPSILON_MS]
        self._advance(min(remaining) * len(remaining), 1 / len(remaining))

    def _advance(self, ms: float, speed: float = 1.0) -> None:
        self.now += ms
        self._step_ms = max(0.0, self._step_ms - ms * speed)
        self._render_ms = max(0.0, self._render_ms - ms * speed)

    def _deliver_chunk(self, utterance: SimulatedUtterance) -> None:
        self._advance(self.figures.reader_ms)
        utterance.deliver(self.now + self.figures.host_ms / 2)
        if utterance.num_read < utterance.num_frames:
            self.schedule_request(utterance)
            return
        self._scheduler.remove(utterance)
        if utterance.on_end is not None:
            utterance.on_end(utterance)

    def schedule_request(self, utterance: SimulatedUtterance) -> None:
        """Schedule the client's request for the next chunk."""
        request_ms = self.now + NEXT_CHUNK_MS
        if utterance.buffer_ms is not None:
            request_ms = max(request_ms, utterance.playback_end_ms - utterance.buffer_ms)
        self.schedule(request_ms, lambda: self._request_chunk(utterance))

    def _request_chunk(self, utterance: SimulatedUtterance) -> None:
        utterance.request_chunk(self.now)
        if utterance.is_ready:
            self._deliver_chunk(utterance)


def percentile(values: Sequence[float], share: int) -> float:
    """The percentile as `vivace bench` computes it."""
    if not values:
        raise RequestError("the simulation had no speech; use more calls or a longer time")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * share // 100)]
