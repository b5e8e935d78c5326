"""Which utterances are admitted, which are stepped, and for how many frames: plain numbers.

Rules: first come, first admitted; while a reader waits for its first audio a turn is as short as it
asked; and no turn is longer than the frames that an utterance was given so far, or its audio would
underrun. Where a batched step costs little more than a single one, every utterance that can run is
stepped in every turn, and frames are also made ahead of their readers. Where it does not, as on a
CPU, turns are one utterance's: first audio before all else, then whoever has waited longest. A
paused utterance has all the frames that may be made ahead and a reader who is away: no turn looks
at it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from vivace.engine.utterance import State, Utterance
from vivace.errors import RequestError

Profile = Literal["latency", "balanced", "throughput"]
MAX_WHILE_OTHERS_WAIT = 4  # frames of a turn that is one utterance's


@dataclass(frozen=True, slots=True)
class Pace:
    """What a profile means."""

    max_frames: int  # of one turn
    max_ahead: int  # frames made before their reader asks
    min_frames: int  # of a turn in which no reader waits for first audio


PACES: dict[Profile, Pace] = {
    "latency": Pace(max_frames=4, max_ahead=4, min_frames=1),
    "balanced": Pace(max_frames=16, max_ahead=16, min_frames=4),
    "throughput": Pace(max_frames=32, max_ahead=32, min_frames=16),
}


@dataclass(frozen=True, slots=True)
class EngineLimits:
    max_streams: int | None = None  # running at once; None: as many as the backend has slots
    max_queue: int = 256  # waiting for a slot
    max_wait_s: float = 60.0  # for a slot, while no reader of a running stream comes back
    max_idle_s: float = 300.0  # an unread stream keeps its slot while others wait for one
    profile: Profile = "balanced"

    def __post_init__(self) -> None:
        if (self.max_streams is not None and self.max_streams < 1) or self.max_queue < 0:
            raise RequestError(
                "max_streams must be 1 or more and max_queue 0 or more, "
                f"not {self.max_streams} and {self.max_queue}"
            )
        if self.profile not in PACES:
            raise RequestError(f"profile must be one of {', '.join(PACES)}, not {self.profile!r}")


@dataclass(frozen=True, slots=True)
class Load:
    """How full an engine is."""

    num_slots: int
    num_running: int
    num_waiting: int
    max_queue: int
    wait_s: float = 0.0  # estimated, of a request made now

    @property
    def is_full(self) -> bool:
        """Whether a request made now would be refused, however short its wait."""
        return self.num_running + self.num_waiting >= self.num_slots + self.max_queue

    def refuses(self, max_wait_s: float) -> bool:
        """Whether a request made now, which may wait so long, would be refused."""
        return self.is_full or self.wait_s > max_wait_s


@dataclass(frozen=True, slots=True)
class Plan:
    """One turn."""

    admitted: tuple[Utterance, ...] = ()  # in this turn, and stepped too if they can be
    stepped: tuple[Utterance, ...] = ()
    num_frames: int = 0


@dataclass(slots=True)
class Scheduler:
    limits: EngineLimits
    num_slots: int
    shares_work: bool = True  # a batched step costs little more than a single one
    queue: deque[Utterance] = field(default_factory=deque)
    running: list[Utterance] = field(default_factory=list)  # with a slot
    active: list[Utterance] = field(default_factory=list)  # the running without the paused
    _pace: Pace = field(init=False)
    _is_full: bool = False  # the next in the queue waits for memory, not for a slot
    _starved: Sequence[Utterance] = ()  # running, and wait for memory too

    def __post_init__(self) -> None:
        self._pace = PACES[self.limits.profile]

    @property
    def num_usable_slots(self) -> int:
        """Fewer than there are while the next in the queue waits for memory."""
        return len(self.running) if self._is_full and self.running else self.num_slots

    def remove(self, utterance: Utterance) -> None:
        if utterance in self.running:
            self.running.remove(utterance)
            if utterance in self.active:
                self.active.remove(utterance)
            self._is_full, self._starved = False, ()
        else:
            self.queue.remove(utterance)

    def wait_for_memory(self, refused: Sequence[Utterance], starved: Sequence[Utterance]) -> None:
        """Until another is removed: the refused go back to where they were in the queue."""
        if not refused and not starved:
            return
        self.running = [one for one in self.running if one not in refused]
        self.active = [one for one in self.active if one not in refused]
        self.queue.extendleft(reversed(refused))
        self._is_full = self._is_full or bool(refused)
        self._starved = [*self._starved, *starved]

    def requeue(self, utterance: Utterance) -> None:
        """Admit a running utterance again, before all that wait."""
        self.running.remove(utterance)
        if utterance in self.active:
            self.active.remove(utterance)
        self.queue.appendleft(utterance)

    def pause_unread(self) -> None:
        """Leave out the active whose readers are away, until `resume`."""
        for one in tuple(self.active):
            if self._can_pause(one):
                one.is_paused = True  # before the second look: its reader looks after it asked
                if self._can_pause(one):
                    self.active.remove(one)
                else:
                    one.is_paused = False

    def resume(self, utterance: Utterance) -> None:
        if utterance.is_paused:
            utterance.is_paused = False
            self.active = [one for one in self.running if not one.is_paused]

    def _can_pause(self, one: Utterance) -> bool:
        is_away = not one.num_wanted and one.num_made == one.num_rendered and not one.is_over
        return is_away and one.slot is not None and not self._may_run_ahead(one)

    def plan(self, *, is_rendering: bool = False) -> Plan:
        """The next turn; empty if no reader waits for frames that can be made.

        While the last frames are rendered, the next ones are made ahead.
        """
        admitted = tuple(self._admit())
        active = self.active
        if self._starved:
            active = [one for one in active if one not in self._starved]
        missing = {one: count for one in active if (count := one.num_missing)}
        if not missing and not is_rendering:
            return Plan(admitted)
        if missing and not self.shares_work:
            return self._plan_one(admitted, missing)
        batch = self._batch(active, missing)
        num_frames = self._num_frames(missing, batch) if batch else 0
        return Plan(admitted, tuple(batch), num_frames)

    def _admit(self) -> Iterator[Utterance]:
        """All that have a slot; where prompts do not share work either, one."""
        while self.queue and self._has_slot():
            one = self.queue.popleft()
            self.running.append(one)
            self.active.append(one)
            yield one
            if not self.shares_work:
                return

    def _plan_one(self, admitted: tuple[Utterance, ...], missing: Mapping[Utterance, int]) -> Plan:
        new = [one for one in missing if not one.num_rendered]
        one = new[0] if new else min(missing, key=lambda each: each.read_at)
        num_frames = self._num_frames({one: missing[one]}, [one])
        if len(missing) > 1 or self.queue:
            num_frames = min(num_frames, MAX_WHILE_OTHERS_WAIT)
        return Plan(admitted, (one,), num_frames)

    def _has_slot(self) -> bool:
        return len(self.running) < self.num_slots and not (self._is_full and self.running)

    def _num_frames(self, missing: Mapping[Utterance, int], batch: Sequence[Utterance]) -> int:
        """As many as delay no first audio and let no audio underrun."""
        most = min(max(missing.get(one, 0), one.num_made) for one in batch)
        new = [count for one, count in missing.items() if not one.num_rendered]
        if new:
            return min(*new, most, self._pace.max_frames)
        if self.shares_work:
            least = self._pace.min_frames
            fewest = min((one.num_turn_frames(least) for one in missing), default=least)
        else:
            fewest = min(missing.values())
        return min(fewest, most, self._pace.max_frames)

    def _may_run_ahead(self, one: Utterance) -> bool:
        max_ahead = self._pace.max_ahead if self.shares_work else 0
        return one.num_made > 0 and one.state is State.RUNNING and one.num_ahead < max_ahead

    def _batch(
        self, active: Sequence[Utterance], missing: Mapping[Utterance, int]
    ) -> list[Utterance]:
        """Those whose readers wait, and those whose readers will be back soon."""
        batch = [one for one in active if one in missing or self._may_run_ahead(one)]
        # First audio that is being rendered has the device to itself, unless a reader waits.
        return batch if missing or any(one.num_rendered for one in batch) else []
