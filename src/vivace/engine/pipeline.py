"""Calls the backend in the order that keeps it busy.

Frames and samples can be in flight at once: while the frames of one turn are rendered, the next
frames are made. A synchronous backend has finished its work when the call returns, and its samples
are delivered at once: the next frames would delay them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vivace.backends.base import Backend, Frames, Rendered, Slot
from vivace.engine.utterance import Utterance
from vivace.errors import BackendFullError, EngineError, TTSError

log = logging.getLogger(__name__)


@dataclass(slots=True)
class BackendTimes:
    """Seconds in calls of the backend since the engine was made."""

    admit_s: float = 0.0
    step_s: float = 0.0
    render_s: float = 0.0


@dataclass(slots=True)
class Clock:
    """Adds the time of a `with` block to a field of `BackendTimes`."""

    times: BackendTimes
    name: str
    began: float = 0.0

    def __enter__(self) -> None:
        self.began = time.perf_counter()

    def __exit__(self, *exception: object) -> None:
        seconds = time.perf_counter() - self.began
        setattr(self.times, self.name, getattr(self.times, self.name) + seconds)


@dataclass(frozen=True, slots=True, eq=False)
class FramesInFlight:
    utterances: Sequence[Utterance]
    slots: Sequence[Slot]  # in which the frames were started; a retry changes an utterance's slot
    wait: Callable[[], Frames]
    began: float


@dataclass(frozen=True, slots=True, eq=False)
class SamplesInFlight:
    utterances: Sequence[Utterance]
    slots: Sequence[Slot]
    frames: Frames
    wait: Callable[[], Rendered]


class Pipeline:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._frames: FramesInFlight | None = None
        self._samples: SamplesInFlight | None = None
        self._at_risk: Sequence[Utterance] = ()  # in the current backend call
        self._refused: list[Utterance] = []  # not admitted for lack of memory
        self._starved: list[Utterance] = []  # made no frames for lack of memory
        self.step_s = 0.0  # seconds for each of the last frames; 0: none was made
        self.times = BackendTimes()
        self._step_clock = Clock(self.times, "step_s")
        self._render_clock = Clock(self.times, "render_s")

    @property
    def can_start(self) -> bool:
        """Whether frames can be started without delaying work in flight."""
        return self._frames is None and (self._samples is None or self._backend.renders_beside)

    @property
    def is_rendering(self) -> bool:
        return self._samples is not None

    @property
    def is_busy(self) -> bool:
        return self._frames is not None or self._samples is not None

    def take_waiting(self) -> tuple[list[Utterance], list[Utterance]]:
        """Return and clear the utterances that lacked memory for prompts and for frames."""
        waiting = self._refused, self._starved
        self._refused, self._starved = [], []
        return waiting

    def run(
        self, admitted: Sequence[Utterance], stepped: Sequence[Utterance], num_frames: int
    ) -> None:
        """Admit and start these utterances, then wait for the oldest work in flight."""
        if admitted:
            self._admit(admitted)
        if stepped := [one for one in stepped if one.slot is not None]:
            self._start(stepped, num_frames)
        if self._samples is None and self._frames is not None:
            self._collect(self._frames)
            if self._backend.renders_beside:
                self._at_risk = ()
                return
        if self._samples is not None:
            self._deliver(self._samples)
        self._at_risk = ()

    def give_up(self) -> Sequence[Utterance]:
        """The utterances whose slots are in an unknown state after `run` raised."""
        at_risk, self._at_risk = self._at_risk, ()
        if self._frames is not None and self._frames.utterances is at_risk:
            self._frames = None
        if self._samples is not None and self._samples.utterances is at_risk:
            self._samples = None
        return at_risk

    def _admit(self, utterances: Sequence[Utterance]) -> None:
        """Admit prompts. A rejected prompt fails its own utterance only."""
        self._at_risk = utterances
        began = time.perf_counter()
        try:
            slots = self._backend.admit_many([one.admission for one in utterances])
        except Exception as error:
            if len(utterances) > 1:  # admitted one by one, only the faulty ones fail
                for one in utterances:
                    self._admit([one])
                return
            slots = [error]
        seconds = time.perf_counter() - began
        self.times.admit_s += seconds
        for one, slot in zip(utterances, slots, strict=True):
            if isinstance(slot, BackendFullError):
                self._refused.append(one)
            elif isinstance(slot, Exception):
                if one.num_retries:
                    log.warning("a retry was not admitted, words are missing: %s", slot)
                reason = f"the backend rejected the prompt ({describe(slot)})"
                one.refuse(slot if isinstance(slot, TTSError) else engine_error(reason, slot))
            else:
                one.admit(slot, began)
                one.admit_ms = 1000 * seconds

    def _start(self, utterances: Sequence[Utterance], num_frames: int) -> None:
        self._at_risk = utterances
        with self._step_clock:
            slots = _slots(utterances)
            wait = self._backend.start_step(slots, num_frames)
        self._frames = FramesInFlight(utterances, slots, wait, self._step_clock.began)

    def _collect(self, flight: FramesInFlight) -> None:
        """Wait for frames and start rendering them."""
        self._at_risk = flight.utterances
        with self._step_clock:
            frames = flight.wait()
        if num_made := max(frames.lengths):
            self.step_s = (time.perf_counter() - flight.began) / num_made
        self._frames = None
        pairs = zip(flight.utterances, flight.slots, strict=True)
        rows = [row for row, (one, slot) in enumerate(pairs) if one.slot == slot]
        utterances, frames = [flight.utterances[row] for row in rows], frames.take(rows)
        for one, count, status in zip(utterances, frames.lengths, frames.status, strict=True):
            one.make(count, status)
            if not count and status == "running":
                self._starved.append(one)
        if utterances:
            slots = _slots(utterances)
            with self._render_clock:
                wait = self._backend.start_render(slots, frames)
            self._samples = SamplesInFlight(utterances, slots, frames, wait)

    def _deliver(self, flight: SamplesInFlight) -> None:
        """Wait for samples and give them to their utterances."""
        self._at_risk = flight.utterances
        with self._render_clock:
            sound = flight.wait()
        self._samples = None
        frames = flight.frames
        for row, one in enumerate(flight.utterances):
            if one.slot in (None, flight.slots[row]):
                one.receive(
                    frames.of(row),
                    sound.samples[row],
                    sound.loudness[row],
                    frames.status[row],
                    frames.places_of(row),
                )


def _slots(utterances: Sequence[Utterance]) -> list[Slot]:
    return [one.slot for one in utterances if one.slot is not None]


def engine_error(reason: str, fault: BaseException) -> EngineError:
    error = EngineError(reason)
    error.__cause__ = fault
    return error


def describe(fault: BaseException) -> str:
    return f"{type(fault).__name__}: {fault}" if str(fault) else type(fault).__name__
