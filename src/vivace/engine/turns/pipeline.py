"""Calls the backend in the order that keeps it busy.

Frames and samples can be in flight at once: while the frames of one turn are rendered, the next
frames are made. Where the plan allows it, they are started while the last frame of the turn is
made, so that the device does not wait for the host. A synchronous backend has finished its work
when the call returns, and its samples are delivered at once: the next frames would delay them.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vivace.backends.base import Backend, FollowedStep, Frames, Rendered, Slot
from vivace.engine.utterances.utterance import Utterance
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
    num_texts: Sequence[int] = ()  # parts of each live text that were appended before the start
    is_follower: bool = False  # started before earlier frames were there
    is_followed: bool = False  # the next frames are started before these are there


@dataclass(frozen=True, slots=True, eq=False)
class SamplesInFlight:
    utterances: Sequence[Utterance]
    slots: Sequence[Slot]
    frames: Frames
    wait: Callable[[], Rendered]


class Pipeline:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._frames: deque[FramesInFlight] = deque()
        self._is_ending = False  # the device makes the last of the frames in flight
        self._samples: SamplesInFlight | None = None
        self._at_risk: Sequence[Utterance] = ()  # in the current backend call
        self._refused: list[Utterance] = []  # not admitted for lack of memory
        self._starved: list[Utterance] = []  # made no frames for lack of memory
        self._is_short = False  # an utterance of the last frames made none for lack of memory
        self._collected_at = 0.0
        self.step_s = 0.0  # seconds for each of the last frames; 0: none was made
        self.times = BackendTimes()
        self._step_clock = Clock(self.times, "step_s")
        self._render_clock = Clock(self.times, "render_s")

    @property
    def can_start(self) -> bool:
        """Whether frames can be started without delaying work in flight."""
        is_free = not self._frames or self._is_ending
        return is_free and (self._samples is None or self._backend.renders_beside)

    @property
    def is_rendering(self) -> bool:
        return self._samples is not None

    @property
    def is_busy(self) -> bool:
        return bool(self._frames) or self._samples is not None

    def take_waiting(self) -> tuple[list[Utterance], list[Utterance]]:
        """Return and clear the utterances that lacked memory for prompts and for frames."""
        waiting = self._refused, self._starved
        self._refused, self._starved = [], []
        return waiting

    def run(
        self,
        admitted: Sequence[Utterance],
        stepped: Sequence[Utterance],
        num_frames: int,
        *,
        is_followed: bool = False,
    ) -> None:
        """Admit and start these utterances, then wait for the oldest work in flight.

        `is_followed`: the next utterances may be started before the frames of these are there.
        """
        if admitted:
            self._admit(admitted)
        if stepped := [one for one in stepped if one.slot is not None]:
            self._start(stepped, num_frames, is_followed=is_followed)
        self._wait()
        self._at_risk = ()

    def _wait(self) -> None:
        if self._samples is None and self._frames:
            flight = self._frames[0]
            is_last = len(self._frames) == 1 and not self._is_ending
            if is_last and flight.is_followed and not self._is_short:
                self._wait_for_last_frame(flight)
                return
            self._collect(flight)
            if self._backend.renders_beside:
                return
        if self._samples is not None:
            self._deliver(self._samples)

    def give_up(self) -> Sequence[Utterance]:
        """The utterances whose slots are in an unknown state after `run` raised."""
        at_risk, self._at_risk = self._at_risk, ()
        if any(flight.utterances is at_risk for flight in self._frames):
            self._frames = deque(each for each in self._frames if each.utterances is not at_risk)
            self._is_ending = False
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

    def _start(
        self, utterances: Sequence[Utterance], num_frames: int, *, is_followed: bool
    ) -> None:
        self._at_risk = utterances
        with self._step_clock:
            slots = _slots(utterances)
            wait = self._backend.start_step(slots, num_frames)
        flight = FramesInFlight(
            utterances,
            slots,
            wait,
            self._step_clock.began,
            [one.num_texts for one in utterances],
            is_follower=bool(self._frames),
            is_followed=is_followed and isinstance(wait, FollowedStep),
        )
        self._frames.append(flight)
        self._is_ending = False

    def _wait_for_last_frame(self, flight: FramesInFlight) -> None:
        self._at_risk = flight.utterances
        assert isinstance(flight.wait, FollowedStep)
        with self._step_clock:
            flight.wait.wait_for_last_frame()
        self._is_ending = True

    def _collect(self, flight: FramesInFlight) -> None:
        """Wait for frames and start rendering them."""
        self._at_risk = flight.utterances
        with self._step_clock:
            frames = flight.wait()
        self._measure(flight, frames)
        self._frames.popleft()
        if not self._frames:
            self._is_ending = False
        rows = [row for row, slot in enumerate(flight.slots) if flight.utterances[row].slot == slot]
        utterances, frames = [flight.utterances[row] for row in rows], frames.take(rows)
        self._count(flight, rows, frames)
        if utterances:
            slots = _slots(utterances)
            with self._render_clock:
                wait = self._backend.start_render(slots, frames)
            self._samples = SamplesInFlight(utterances, slots, frames, wait)

    def _measure(self, flight: FramesInFlight, frames: Frames) -> None:
        """Note the time of a frame. Frames that follow others begin when those are there."""
        now = time.perf_counter()
        if num_made := max(frames.lengths):
            self.step_s = (now - max(flight.began, self._collected_at)) / num_made
        self._collected_at = now

    def _count(self, flight: FramesInFlight, rows: Sequence[int], frames: Frames) -> None:
        """Count the frames of these rows' utterances, and note those that lack memory.

        The frames of a follower may lack memory that was freed since. Its successor is therefore
        not started early, and notes those that still lack it.
        """
        starved = []
        for row, count, status in zip(rows, frames.lengths, frames.status, strict=True):
            one = flight.utterances[row]
            has_new_text = status == "waiting" and one.num_texts > flight.num_texts[row]
            one.make(count, "running" if has_new_text else status)
            if not count and status == "running":
                starved.append(one)
        self._is_short = bool(starved)
        if not flight.is_follower:
            self._starved += starved

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
