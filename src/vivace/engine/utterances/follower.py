"""Follows an utterance's attention through its text and finds faults: skipped or repeated words,
stalls, an early end and an invented tail.

The follower works on plain numbers: for each frame, the text id with the most attention and the
share of attention on the text. It does not import torch, backends or threading code.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from vivace.engine.utterances.look_ahead import num_settled

FaultKind = Literal["early_end", "skip", "loop", "stall", "tail"]

MIN_SHARE = 0.3  # of attention on the text; frames below it have no known place
MAX_SKIPPED_IDS = 3  # word ids between two consecutive frames
MAX_FAST_IDS = 12  # within `FAST_FRAMES`
FAST_FRAMES = 4
MAX_BACK_IDS = 3  # that attention may return over
LOOP_FRAMES = 6  # in a row with attention further back
STALL_FRAMES = 38  # at one id: 3 s
TAIL_FRAMES = 25  # after the start of the last word: 2 s


@dataclass(frozen=True, slots=True)
class TextId:
    is_word: bool  # has a letter or a digit
    begins_word: bool


MarkIds = Callable[[Sequence[int]], Iterable[TextId]]
"""Describes text ids for a follower."""


@dataclass(frozen=True, slots=True)
class Fault:
    kind: FaultKind
    frame: int  # the first wrong frame
    ids: range  # the text ids that are skipped, repeated or stalled
    num_seen: int  # frames before the one in which the fault was found


class WordCheck(Protocol):
    """The result of following an utterance through its text."""

    @property
    def is_useful(self) -> bool: ...

    @property
    def lost(self) -> set[int]: ...

    @property
    def doubtful(self) -> set[int]: ...

    @property
    def unreached(self) -> Collection[int]: ...


class TextFollower:
    def __init__(self, ids: Iterable[TextId], *, is_complete: bool = True) -> None:
        self._ids: list[TextId] = []
        self._num_words_to = [0]  # word ids before each id, and in all
        self._last_word = -1  # the last word id
        self.is_complete = is_complete  # no more ids follow
        self.extend(ids, is_last=is_complete)
        self._arrivals: list[int] = []  # the frame in which each id was reached or passed
        self._num_frames = 0
        self._jump: tuple[int, int] | None = None  # frame and id of an unconfirmed jump
        self._num_back = 0  # frames in a row with attention further back
        self._changed = 0  # the frame of the last arrival
        self._accepted = 0  # the frame in which the last fault was accepted
        self.num_settled = 0  # frames that are final despite later faults
        self.lost: set[int] = set()  # ids that were not spoken
        self.doubtful: set[int] = set()  # ids that are repeated, stalled or run on

    def extend(self, ids: Iterable[TextId], *, is_last: bool = False) -> None:
        """Append ids of a live text."""
        num_words = self._num_words_to[-1]
        for one in ids:
            if one.is_word:
                self._last_word = len(self._ids)
                num_words += 1
            self._ids.append(one)
            self._num_words_to.append(num_words)
        self.is_complete = is_last

    @property
    def place(self) -> int:
        """The furthest id reached; -1 before the first."""
        return len(self._arrivals) - 1

    @property
    def is_useful(self) -> bool:
        """Whether any frame attended to the text."""
        return bool(self._arrivals)

    @property
    def num_left(self) -> int:
        """Word ids that are not yet reached."""
        return self._num_words(self.place + 1, len(self._ids))

    @property
    def unreached(self) -> range:
        """Ids that no frame attended to."""
        return range(self.place + 1, len(self._ids))

    def observe(self, places: Iterable[tuple[int, float]]) -> Fault | None:
        """Follow the next frames. Returns at the first fault in them.

        A call with the same iterator continues after that fault.
        """
        arrivals, frame = self._arrivals, self._num_frames
        reached = len(arrivals) - 1
        for place, share in places:  # most frames take one of the branches that continue
            if share < MIN_SHARE:
                if reached < self._last_word and frame - self._changed < STALL_FRAMES:
                    frame += 1
                    continue
                place = -1
            elif self._jump is not None:
                pass
            elif place == reached + 1:
                arrivals.append(frame)
                self._num_back, self._changed = 0, frame
                reached, frame = place, frame + 1
                continue
            elif place == reached and frame - self._changed < TAIL_FRAMES:
                self._num_back, frame = 0, frame + 1
                continue
            self._num_frames = frame
            fault = self._step(place)
            frame = self._num_frames = frame + 1
            if fault is not None:
                return fault
            reached = len(arrivals) - 1
        self._num_frames = frame
        return None

    def end(self) -> Fault | None:
        """Check the end of speech that the model has drawn."""
        if not self.is_useful or (self.place >= self._last_word and self.is_complete):
            return None
        return self._fault("early_end", self._num_frames, self.unreached)

    def _step(self, place: int) -> Fault | None:
        if place < 0:
            return self._check_still()
        if self._jump is not None:
            return self._settle_jump(place)
        if place > self.place:
            if self._num_words(self.place + 1, place) > MAX_SKIPPED_IDS:
                self._jump = self._num_frames, place
                return None
            return self._arrive(place, self._num_frames)
        if place < self.place - MAX_BACK_IDS:
            self._num_back += 1
            if self._num_back == LOOP_FRAMES:
                first = self._num_frames + 1 - LOOP_FRAMES
                return self._fault("loop", first, range(place, self.place + 1))
            return None
        self._num_back = 0
        return self._check_still()

    def _settle_jump(self, place: int) -> Fault | None:
        """A second frame confirms a jump. Otherwise the first frame was noise."""
        assert self._jump is not None
        frame, target = self._jump
        self._jump = None
        if place < target - 1:
            return self._step(place)
        return self._fault("skip", frame, range(self.place + 1, target))

    def _arrive(self, place: int, frame: int) -> Fault | None:
        self._arrivals += [frame] * (place - self.place)
        self._num_back, self._changed = 0, frame
        first = place - MAX_FAST_IDS
        if first >= 0 and frame - self._arrivals[first] < FAST_FRAMES:
            return self._fault("skip", self._arrivals[first], range(first, place))
        return None

    def _check_still(self) -> Fault | None:
        num_still = self._num_frames - self._changed
        if not self.is_useful:
            return None
        if self.is_complete and self.place >= self._last_word:
            word = range(self._last_word, self._last_word + 1)
            began = max(self._arrivals[self._last_word], self._accepted)
            is_tail = self._num_frames - began >= TAIL_FRAMES
            return self._fault("tail", began, word) if is_tail else None
        if num_still < STALL_FRAMES:
            return None
        return self._fault("stall", self._changed, range(self.place, self.place + 1))

    def _fault(self, kind: FaultKind, frame: int, ids: range) -> Fault:
        return Fault(kind, frame, ids, self._num_frames)

    def _num_words(self, first: int, end: int) -> int:
        """Word ids from `first` on, before `end`."""
        return self._num_words_to[min(end, len(self._ids))] - self._num_words_to[first]

    # -- after a fault -----------------------------------------------------------------------

    def num_settled_at(self, fault: Fault) -> int:
        """Frames that were final when the fault was found."""
        return max(self.num_settled, num_settled(fault.num_seen))

    def resume_frame(self, fault: Fault, num_retries: int) -> int | None:
        """The first frame of a retry: a word's start, further back after each failed retry.

        None if the fault lies in final frames, except for a stall: its retry begins after them.
        """
        first = self.num_settled = self.num_settled_at(fault)
        if fault.frame < first:
            return first if fault.kind == "stall" else None
        starts = {
            frame
            for one, frame in zip(self._ids, self._arrivals, strict=False)
            if one.begins_word and first <= frame <= fault.frame
        }
        if fault.kind == "early_end":
            starts.add(fault.frame)
        if not starts:
            return first
        return sorted(starts, reverse=True)[min(num_retries, len(starts) - 1)]

    def rewind(self, frame: int) -> None:
        """Discard this frame and all later ones."""
        self._arrivals[:] = [arrival for arrival in self._arrivals if arrival < frame]
        self._num_frames = self._changed = frame
        self._jump, self._num_back = None, 0

    def accept(self, fault: Fault) -> None:
        """Record a fault that is not repaired, and continue after it."""
        if fault.kind in ("early_end", "skip"):
            self.lost |= set(fault.ids)
        else:
            self.doubtful |= set(fault.ids)
        if fault.kind == "skip" and fault.ids.stop > self.place:
            self._arrivals += [self._num_frames] * (fault.ids.stop - self.place)
        self._num_back, self._changed, self._accepted = 0, self._num_frames, self._num_frames
