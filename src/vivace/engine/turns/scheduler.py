"""Decides what the engine does in the next turn: which utterances to admit and to step, and how
many frames to make.

- Admission is first come, first served.
- While a client waits for its first audio, the turn is as short as that client's first chunk.
- While the first frames of an utterance are silent, turns of a few utterances make one frame.
- A turn never makes more frames than an utterance has already made. Otherwise its playback would
  underrun.
- While slots are free, a turn of a few utterances that is longer than usual ends soon. A request
  that arrives meanwhile waits for its end.
- Where a batched step costs little more than a single one, as on a GPU, all runnable utterances
  share the turn, and frames are also made ahead of their readers.
- While an utterance begins, a turn reads prompts of at most `max_prompt_rows` rows, or one prompt.
  Its first frames would otherwise have been played before its next turn.
- More than `MAX_BATCH` utterances take turns. Up to `MAX_SHORT` short turns step those that begin,
  until they have as many frames as a longer turn makes. Then a longer turn steps the others, in the
  order in which their playback needs frames.
- On a CPU, where batching gains nothing, a turn steps one utterance: new ones first, then the one
  that has waited longest.
- While the frames of an utterance that runs alone are rendered, and its reader waits for a whole
  turn, the next turn is as long. Other turns ahead of readers are short.
- The turn after one of many utterances may start while the last frame of that one is made.
- An utterance is paused while its client has not read the frames that may be made ahead.

The scheduler works on plain numbers. It does not import torch, threading or HTTP code.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from vivace.engine.limits import PACES, EngineLimits, Pace

MAX_WHILE_OTHERS_WAIT = 4  # frames of a turn that steps one utterance
MAX_BATCH = 256  # utterances of a turn; a larger step costs as much as several
MAX_SILENT_BATCH = 8  # utterances of a turn that is shortened for one that begins with silence
MAX_SHORT = 3  # turns in a row of utterances that begin: 1, 1 and 2 frames
MIN_FOLLOWED, MAX_FOLLOWED = 2, 8  # frames of a turn whose successor may start early
FRAME_S = 0.08  # of audio
MAX_TURN_S = 0.024  # of a longer turn of a few utterances, while a request could be admitted


class Schedulable(Protocol):
    """The numbers of an utterance that decide its turns."""

    num_made: int  # frames, including those being rendered
    num_rendered: int
    num_wanted: int  # frames that its reader waits for; 0: it does not wait
    admitted_at: float  # when it got its first slot
    read_at: float  # when its reader last requested frames
    is_paused: bool

    @property
    def num_prompt_rows(self) -> int:
        """Rows of its prompt."""

    @property
    def num_ahead(self) -> int:
        """Frames made for the reader and not yet read."""

    @property
    def num_missing(self) -> int:
        """Frames to make before the reader's request can be answered."""

    @property
    def is_silent(self) -> bool:
        """Whether its first frames were silent, and its reader still waits for sound."""

    @property
    def is_running(self) -> bool:
        """Whether it can make frames."""

    @property
    def is_unread(self) -> bool:
        """Whether its reader waits for nothing and no frame is in flight."""

    def num_turn_frames(self, min_frames: int) -> int:
        """Frames of a turn that serves the reader's request, `min_frames` or more."""


S = TypeVar("S", bound=Schedulable)


@dataclass(frozen=True, slots=True)
class Plan(Generic[S]):
    """One turn."""

    admitted: tuple[S, ...] = ()  # in this turn, and stepped too if they can be
    stepped: tuple[S, ...] = ()
    num_frames: int = 0
    is_followed: bool = False  # the next turn may start before these frames are there


@dataclass(slots=True)
class Scheduler(Generic[S]):
    limits: EngineLimits
    num_slots: int
    shares_work: bool = True  # a batched step costs little more than a single one
    queue: deque[S] = field(default_factory=deque)
    running: list[S] = field(default_factory=list)  # with a slot
    step_s: float = 0.0  # seconds of a frame in the last turn; 0: not measured
    max_prompt_rows: int = 2048  # of the prompts of a turn, while an utterance begins
    _active: list[S] = field(default_factory=list)  # as `active`, unless `_has_resumed`
    _has_resumed: bool = False
    _pace: Pace = field(init=False)
    _is_full: bool = False  # the first in the queue waits for memory, not for a slot
    _starved: Sequence[S] = ()  # running, and wait for memory too
    _num_short: int = 0  # turns in a row that stepped only utterances that begin

    def __post_init__(self) -> None:
        self._pace = PACES[self.limits.profile]

    @property
    def num_usable_slots(self) -> int:
        """Fewer than `num_slots` while the first in the queue waits for memory."""
        return len(self.running) if self._is_full and self.running else self.num_slots

    @property
    def active(self) -> list[S]:
        """The running without the paused. Several that resume are added in one pass."""
        if self._has_resumed:
            self._has_resumed = False
            self._active = [one for one in self.running if not one.is_paused]
        return self._active

    def remove(self, *utterances: S) -> None:
        running = set(self.running).intersection(utterances)
        if running:
            self.running = [one for one in self.running if one not in running]
            self._active = [one for one in self.active if one not in running]
            self._is_full, self._starved = False, ()
        for one in utterances:
            if one not in running:
                self.queue.remove(one)

    def wait_for_memory(self, refused: Sequence[S], starved: Sequence[S]) -> None:
        """Leave these out until another is removed. `refused` go back to the head of the queue."""
        if not refused and not starved:
            return
        self.running = [one for one in self.running if one not in refused]
        self._active = [one for one in self.active if one not in refused]
        self.queue.extendleft(reversed(refused))
        self._is_full = self._is_full or bool(refused)
        self._starved = [*self._starved, *starved]

    def requeue(self, utterance: S) -> None:
        """Put a running utterance at the head of the queue."""
        self.running.remove(utterance)
        if utterance in self.active:
            self.active.remove(utterance)
        self.queue.appendleft(utterance)

    def pause_unread(self) -> None:
        """Leave unread utterances out of turns until `resume`."""
        unread = [one for one in self.active if one.is_unread and not self._may_run_ahead(one)]
        for one in unread:
            one.is_paused = True
        if unread:
            self._active = [one for one in self.active if not one.is_paused]

    def resume(self, utterance: S) -> None:
        if utterance.is_paused:
            utterance.is_paused = False
            self._has_resumed = True

    def plan(self, *, is_busy: bool = False) -> Plan[S]:
        """The next turn. Empty if no reader waits for frames that can be made.

        While the backend is busy with the last frames, the next ones are made ahead.
        """
        admitted = tuple(self._admit())
        active = self.active
        if self._starved:
            active = [one for one in active if one not in self._starved]
        missing = {one: count for one in active if (count := one.num_missing)}
        if not missing and not is_busy:
            return Plan(admitted)
        if missing and not self.shares_work:
            return self._plan_one(admitted, missing)
        batch = self._batch(active, missing)
        if len(batch) > MAX_BATCH:
            batch = self._divide(batch)
            missing = {one: missing[one] for one in batch if one in missing}
        num_frames = self._num_frames(missing, batch) if batch else 0
        return Plan(admitted, tuple(batch), num_frames, self._is_followed(batch, num_frames))

    def _is_followed(self, batch: Sequence[S], num_frames: int) -> bool:
        """Whether the next turn may start before the frames of this one are there.

        The device does not wait for the host then, but a request that arrives during the last frame
        waits for the next turn. Utterances of which a part takes turns are chosen by their frames.
        """
        has_many = len(batch) > MAX_SILENT_BATCH and len(self.running) <= MAX_BATCH
        return has_many and MIN_FOLLOWED <= num_frames <= MAX_FOLLOWED

    def _admit(self) -> Iterator[S]:
        """Move utterances from the queue to free slots: one if prompts do not share work."""
        num_rows, most = 0, self._most_rows()
        while self.queue and self._has_slot():
            num_more = self.queue[0].num_prompt_rows
            if num_rows and num_rows + num_more > most:
                return
            num_rows += num_more
            one = self.queue.popleft()
            self.active.append(one)  # first: it may be made again from `running`
            self.running.append(one)
            yield one

    def _most_rows(self) -> float:
        """The most rows of the prompts of a turn. A single prompt may have more."""
        if not self.shares_work:
            return 0
        return self.max_prompt_rows if any(map(self._begins, self.active)) else math.inf

    def _plan_one(self, admitted: tuple[S, ...], missing: Mapping[S, int]) -> Plan[S]:
        new = [one for one in missing if not one.num_rendered]
        one = new[0] if new else min(missing, key=lambda each: each.read_at)
        num_frames = self._num_frames({one: missing[one]}, [one])
        if len(missing) > 1 or self.queue:
            num_frames = min(num_frames, MAX_WHILE_OTHERS_WAIT)
        return Plan(admitted, (one,), num_frames)

    def _has_slot(self) -> bool:
        return len(self.running) < self.num_slots and not (self._is_full and self.running)

    def _num_frames(self, missing: Mapping[S, int], batch: Sequence[S]) -> int:
        """The most frames that neither delay first audio nor let playback underrun."""
        most = min([max(missing.get(one, 0), one.num_made) for one in batch])
        new = [count for one, count in missing.items() if not one.num_rendered]
        if new:
            return min(*new, most, self._pace.max_frames)
        if self.shares_work:
            is_silent = len(batch) <= MAX_SILENT_BATCH and any(one.is_silent for one in batch)
            least = 1 if is_silent else self._pace.min_frames
            if missing or is_silent:
                fewest = self._turn_frames(missing, least)
            else:
                fewest = self._num_ahead_frames(batch)
            if fewest > least and self._delays_requests(fewest):
                fewest = least
        else:
            fewest = min(missing.values())
        return min(fewest, most, self._pace.max_frames)

    def _delays_requests(self, num_frames: int) -> bool:
        """Whether a request that arrives during this turn waits long for its own first turn.

        Turns of many utterances are not shortened, because that costs throughput.
        """
        is_free = len(self.running) < min(self.num_slots, MAX_SILENT_BATCH + 1)
        is_long = num_frames * self.step_s > MAX_TURN_S
        return is_free and is_long and not any(map(self._reads_whole_turns, self.running))

    def _turn_frames(self, missing: Iterable[S], least: int) -> int:
        """The fewest frames that serve one of the requests, `least` or more."""
        fewest: int | None = None
        for one in missing:
            num_frames = one.num_turn_frames(least)
            if num_frames <= least:
                return least
            fewest = num_frames if fewest is None else min(fewest, num_frames)
        return least if fewest is None else fewest

    def _num_ahead_frames(self, batch: Sequence[S]) -> int:
        """Frames of a turn that no reader waits for."""
        least, [first, *_] = self._pace.min_frames, batch
        if not self._reads_whole_turns(first):
            return least
        return max(least, min(first.num_wanted, self._pace.max_ahead - self._num_ahead(first)))

    def _num_ahead(self, one: S) -> int:
        """Frames made ahead. Those that the reader of whole turns waits for do not count."""
        return one.num_ahead - (one.num_wanted if self._reads_whole_turns(one) else 0)

    def _reads_whole_turns(self, one: S) -> bool:
        """Whether `one` is the only running utterance and its reader waits for a whole turn.

        Such a reader, as of `TTS.speak`, requests as many again. The next turn is as long and
        starts while the last one is rendered, so that the device is not idle until the request.
        """
        return len(self.running) == 1 and one.num_wanted >= self._pace.max_frames

    def _may_run_ahead(self, one: S) -> bool:
        if not self.shares_work or not one.num_made or not one.is_running:
            return False
        return self._num_ahead(one) < self._pace.max_ahead

    def _begins(self, one: S) -> bool:
        """Whether it has frames, but fewer than a turn makes."""
        return 0 < one.num_made < self._pace.min_frames

    def _divide(self, batch: Sequence[S]) -> list[S]:
        """Part of a large batch: the utterances that begin, or the others.

        An utterance that begins would shorten the turn of all others, and its first frames do not
        last until such a turn is over. Utterances without frames wait for those that begin.
        """
        rest = [one for one in batch if one.num_made >= self._pace.min_frames]
        short = []
        if self._num_short < MAX_SHORT or not rest:
            short = [one for one in batch if self._begins(one)]
        if not short and not (self._num_short and rest):
            short = [one for one in batch if not one.num_made]
        self._num_short = self._num_short + 1 if short else 0
        if short:
            return short[:MAX_BATCH]
        return sorted(rest, key=_played_until)[:MAX_BATCH]

    def _batch(self, active: Sequence[S], missing: Mapping[S, int]) -> list[S]:
        """The utterances whose readers wait, and those that may run ahead."""
        batch = [one for one in active if one in missing or self._may_run_ahead(one)]
        # While first audio is rendered, nothing runs ahead.
        return batch if missing or any(one.num_rendered for one in batch) else []


def _played_until(one: Schedulable) -> float:
    """When the frames made so far have been played, if playback began at the admission."""
    return one.admitted_at + FRAME_S * one.num_made
