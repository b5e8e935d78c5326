"""Estimates how long a new request waits before its speech begins, from text lengths and speed.

The estimator works on plain numbers. The engine's thread calls the `observe` methods; any thread
may call `estimate_s`, which changes nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

SMOOTHING = 0.2  # weight of the latest utterance in each average
MIN_MEASURED_FRAMES = 8  # with fewer, as a server's probe has, the first turn is most of the time
OVERRUN = 0.1  # share of the expected frames that an utterance beyond its expected end still needs


class MeasuredUtterance(Protocol):
    """The fields of an utterance that the estimate needs."""

    num_text_ids: int
    is_text_complete: bool
    since: float
    num_made: int
    num_rendered: int


@dataclass(slots=True)
class WaitEstimator:
    """Moving averages over finished utterances. The first values are guesses."""

    frames_per_id: float = 4.0
    num_frames: float = 48.0  # of an utterance
    frame_s: float = 0.02  # seconds that a slot is held for each frame
    admission_s: float = 0.0  # seconds from a turn's start to the first audio that it makes
    _is_measured: bool = False

    def observe_end(self, one: MeasuredUtterance, held_s: float, *, is_complete: bool) -> None:
        """Note an utterance that left its slot. `is_complete`: it was spoken to its end."""
        if one.num_made >= MIN_MEASURED_FRAMES:
            self.frame_s = self._average(self.frame_s, held_s / one.num_made)
            self.num_frames = self._average(self.num_frames, one.num_made)
            if is_complete and one.num_text_ids:
                per_id = one.num_made / one.num_text_ids
                self.frames_per_id = self._average(self.frames_per_id, per_id)
            self._is_measured = True

    def observe_admission(self, turn_s: float) -> None:
        """Note the duration of a turn that admitted one utterance and made its first frames."""
        weight = SMOOTHING if self.admission_s else 1.0
        self.admission_s += weight * (turn_s - self.admission_s)

    def _average(self, mean: float, value: float) -> float:
        return mean + (SMOOTHING if self._is_measured else 1.0) * (value - mean)

    def estimate_s(
        self,
        running: Sequence[MeasuredUtterance],
        queued: Sequence[MeasuredUtterance],
        *,
        num_slots: int,
        now: float,
        num_expected: int = 0,  # requests that are accepted and not yet queued
        shares_work: bool = True,  # False: a turn makes frames of one utterance only
    ) -> float:
        """Seconds until a request made now has a slot and its first turn."""
        slot_s = self._slot_wait_s(running, queued, num_slots, num_expected, now)
        if shares_work:
            return slot_s
        num_silent = sum(not one.num_rendered for one in running) + len(queued) + num_expected
        return max(slot_s, num_silent * self.admission_s)

    def _slot_wait_s(
        self,
        running: Sequence[MeasuredUtterance],
        queued: Sequence[MeasuredUtterance],
        num_slots: int,
        num_expected: int,
        now: float,
    ) -> float:
        """Simulate first come, first served: each queued utterance takes the next free slot."""
        if len(running) + len(queued) + num_expected < num_slots:
            return 0.0
        free_in_s = [self._left_s(one, now) for one in running]
        free_in_s += [0.0] * (num_slots - len(running))
        heapq.heapify(free_in_s)
        for num_frames in [*map(self._length, queued), *[self.num_frames] * num_expected]:
            heapq.heapreplace(free_in_s, free_in_s[0] + num_frames * self.frame_s)
        return free_in_s[0]

    def _length(self, one: MeasuredUtterance) -> float:
        """Expected frames of an utterance. A live text may still grow."""
        if not one.num_text_ids:
            return self.num_frames
        known = one.num_text_ids * self.frames_per_id
        return known if one.is_text_complete else max(known, self.num_frames)

    def _left_s(self, one: MeasuredUtterance, now: float) -> float:
        length = self._length(one)
        num_left = max(length - one.num_made, OVERRUN * length)
        if one.num_made < MIN_MEASURED_FRAMES:
            return num_left * self.frame_s
        return num_left * (now - one.since) / one.num_made
