"""One utterance, from its prompt to its last frame: the only object the engine knows."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from vivace.backends.base import Admission, Loudness, Places, Samples, Slot, SlotStatus
from vivace.engine.follower import Fault, TextFollower, TextId, num_needed, num_settled
from vivace.engine.guard import SILENCE, StallDetector, frame_budget
from vivace.errors import NumericError
from vivace.prompt import Prompt
from vivace.speech import MAX_SEED, FinishReason, SamplingParams

T = TypeVar("T", bound=np.generic)
MarkIds = Callable[[Sequence[int]], Iterable[TextId]]
MAX_RETRIES = 3  # of one utterance
MAX_MASKED_FRAMES = 25  # in which the end of speech is not drawn after an early end
RETRY_STRIDE = 0x9E3779B97F4A7C15  # between the seeds of retries


class State(Enum):
    QUEUED = auto()  # waits for a slot
    RUNNING = auto()
    NEEDS_TEXT = auto()  # its slot can make no frame before more text comes
    RETRYING = auto()  # its last frames are dropped; it needs a new slot to speak them again
    ENDING = auto()  # all frames are made, the last ones not yet rendered
    DONE = auto()
    FAILED = auto()
    CANCELLED = auto()


STATE_OF: dict[SlotStatus, State] = {
    "running": State.RUNNING,
    "waiting": State.NEEDS_TEXT,
    "stop": State.ENDING,
    "length": State.ENDING,
    "failed": State.ENDING,
}
OVER = (State.DONE, State.FAILED, State.CANCELLED)  # not a set: hashing an Enum is slow


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Consecutive frames of an utterance; the last piece may be empty."""

    codes: NDArray[np.int64]  # [frames, codebooks]
    samples: Samples
    finish_reason: FinishReason | None = None  # set on the last piece
    num_stalled: int = 0  # silent or repeated frames at the end of a stall

    @property
    def _frame_size(self) -> int:
        return len(self.samples) // len(self.codes)

    def first(self, num_frames: int) -> Piece:
        """Its first frames, of more."""
        return Piece(self.codes[:num_frames], self.samples[: num_frames * self._frame_size])

    def without(self, num_frames: int) -> Piece:
        """The piece without its first frames."""
        if not num_frames:
            return self
        samples = self.samples[num_frames * self._frame_size :]
        return dataclasses.replace(self, codes=self.codes[num_frames:], samples=samples)


NO_FRAMES = Piece(np.empty((0, 0), np.int64), np.empty(0, np.float32))


def _retry_seed(seed: int, num_retries: int) -> int:
    """Other randomness for another try, the same for the same seed."""
    return (seed + num_retries * RETRY_STRIDE) % (MAX_SEED + 1)


def join(pieces: Sequence[Piece]) -> Piece:
    """Consecutive pieces as one, copied: theirs may be views of a whole batch's."""
    last = pieces[-1]
    codes = _copied([piece.codes for piece in pieces])
    return Piece(
        codes.reshape(sum(len(piece.codes) for piece in pieces), last.codes.shape[1]),
        _copied([piece.samples for piece in pieces]),
        last.finish_reason,
        last.num_stalled,
    )


def take_first(pieces: deque[Piece], num_frames: int) -> list[Piece]:
    """Remove the first `num_frames` frames, and empty pieces directly after them."""
    taken: list[Piece] = []
    while pieces:
        piece = pieces[0]
        if len(piece.codes) > num_frames:
            if num_frames:
                taken.append(piece.first(num_frames))
                pieces[0] = piece.without(num_frames)
            break
        taken.append(pieces.popleft())
        num_frames -= len(piece.codes)
    return taken


def _copied(arrays: Sequence[NDArray[T]]) -> NDArray[T]:
    """All of their numbers in a row. NumPy would give the GIL away, and wait to get it back."""
    parts = (np.ascontiguousarray(array).data for array in arrays)
    return np.frombuffer(bytearray().join(parts), arrays[0].dtype)


@dataclass(frozen=True, slots=True)
class Turn:
    """What a turn did, for metrics and traces."""

    waits_s: tuple[float, ...]  # for a slot, of those that were admitted
    num_stepped: int
    num_frames: int  # for each of them
    began: float  # of time.perf_counter
    seconds: float

    @property
    def num_admitted(self) -> int:
        return len(self.waits_s)


@dataclass(slots=True, kw_only=True, eq=False)
class Utterance:
    """The engine's thread writes it; its reader sets `num_wanted` and takes frames.

    `cancel` may come from any thread, a finalizer or a signal handler.
    """

    prompt: Prompt
    sampling: SamplingParams
    wake: Callable[[], None]  # its reader, from the engine's thread
    num_text_ids: int = 0
    is_text_complete: bool = True
    is_guarded: bool = True  # against stalls
    has_budget: bool = True  # of frames, by the length of the text
    is_continued: bool = False  # an earlier utterance of its stream was spoken
    follower: TextFollower | None = None  # checks that every word is spoken
    mark_ids: MarkIds | None = None  # what the follower must know of the ids of live text
    on_turn: Callable[[Turn], None] | None = None  # called by the engine's thread after its turns
    # -- the engine's
    slot: Slot | None = None
    since: float = 0.0  # when it was queued, then when it was admitted
    waited_s: float = 0.0  # for its slot
    admit_ms: float = 0.0
    num_made: int = 0  # frames, including those being rendered
    num_rendered: int = 0
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    is_over_budget: bool = False
    is_paused: bool = False  # no turn looks at it until its reader is back
    # -- the reader's
    num_wanted: int = 0  # frames that its reader waits for; 0 if it does not wait
    num_asked: int = 0  # how often its reader has asked for frames
    read_at: float = 0.0  # when its reader last asked for frames
    num_read: int = 0
    is_text_sent: bool = False  # and not yet given to its slot
    _is_end_read: bool = False
    _unread: deque[Piece] = field(default_factory=deque)  # taken from `_published`
    _num_answered: int = 0  # requests of its reader that it was woken for
    _state: State = State.QUEUED
    _is_cancelled: bool = False
    num_retries: int = 0  # of parts that were spoken wrongly
    _kept: NDArray[np.int64] | None = None  # frames that the slot's prompt continues from
    _masked_frames: int = 0  # after those, in which the end of speech is not drawn
    _codes: list[NDArray[np.int64]] = field(default_factory=list)  # all frames, if followed
    _later_ids: list[int] = field(default_factory=list)  # text appended after the prompt
    # The engine appends rendered frames; an int drops the frames from that number on. The reader
    # removes both, and takes no frames beyond `num_final`, which are never dropped.
    _published: deque[Piece | int] = field(default_factory=deque)
    _num_published: int = 0  # frames
    num_final: int = 0
    _stall: StallDetector = field(default_factory=StallDetector)
    _num_stalled: int = 0
    _has_sound: bool = False

    @property
    def state(self) -> State:
        if self._is_cancelled and self._state not in OVER:
            return State.CANCELLED
        return self._state

    @property
    def is_over(self) -> bool:
        return self._is_cancelled or self._state in OVER

    @property
    def num_ahead(self) -> int:
        """Frames made for the reader and not yet read, apart from those that are held back."""
        num_made = self.num_made if self.follower is None else num_settled(self.num_made)
        return num_made - self.num_read

    @property
    def num_missing(self) -> int:
        """Frames to make for its reader now, or when it is admitted."""
        state = self._state
        if not self.num_wanted or (state is not State.RUNNING and state is not State.QUEUED):
            return 0
        num_made = self.num_read + self.num_wanted
        if self.follower is not None:
            num_made = num_needed(num_made)
        return num_made - self.num_made if num_made > self.num_made else 0

    def num_turn_frames(self, min_frames: int) -> int:
        """Frames of a turn for its reader, `min_frames` or more: as many as without look-ahead.

        The look-ahead alone takes a turn as long as the reader's request, or `min_frames` if that
        is enough. Turns of other lengths would cost more than one of these on a GPU.
        """
        num_missing = self.num_read + self.num_wanted - self.num_made
        if num_missing <= 0:
            num_missing = self.num_missing
            num_missing = self.num_wanted if num_missing > min_frames else min_frames
        return max(num_missing, min_frames)

    @property
    def needs_text(self) -> bool:
        """Whether its reader must send text: all frames of what it sent are rendered."""
        is_blocked = self.state is State.NEEDS_TEXT and not self.is_text_sent
        return is_blocked and self.num_made == self.num_rendered

    @property
    def is_ready(self) -> bool:
        """Whether its reader has what it waits for, or need not wait for it."""
        num_there = self.num_final - self.num_read
        return num_there >= self.num_wanted or self.is_over or self.needs_text

    @property
    def has_frames(self) -> bool:
        """Whether the reader can take frames, or the end."""
        has_end = self.finish_reason is not None and not self._is_end_read
        return has_end or self.num_final > self.num_read

    # -- its reader --------------------------------------------------------------------------

    def take(self, num_frames: int) -> Piece:
        """Up to `num_frames` final frames, and the end if it follows.

        Raises the utterance's error if there are none.
        """
        num_left = self.num_final - self.num_read  # before `_published` is emptied
        while self._published:
            if isinstance(piece := self._published.popleft(), Piece):
                self._unread.append(piece)
            else:
                self._unread = deque(take_first(self._unread, piece - self.num_read))
        if self.error is not None and not num_left and not self.finish_reason:
            raise self.error
        num_taken = min(num_frames, num_left)
        taken = take_first(self._unread, num_taken) or [NO_FRAMES]
        self.num_read += num_taken
        self._is_end_read = taken[-1].finish_reason is not None
        return join(taken)

    def cancel(self) -> None:
        self._is_cancelled = True

    # -- the engine's thread -----------------------------------------------------------------

    def wake_if_ready(self) -> None:
        """Once for each request of its reader, however many turns it takes to come."""
        num_asked = self.num_asked
        if num_asked != self._num_answered and self.num_wanted and self.is_ready:
            self._num_answered = num_asked
            self.wake()

    @property
    def admission(self) -> Admission:
        """What the backend gets: no more frames than the budget, so that it reserves no more."""
        sampling, kept = self.sampling, self._kept
        num_kept = 0 if kept is None else len(kept)
        most = min(sampling.max_frames, self._num_left(0)) - num_kept
        fewest = min(max(sampling.min_frames - num_kept, self._masked_frames), most)
        if (most, fewest) != (sampling.max_frames, sampling.min_frames):
            sampling = sampling.replace(max_frames=most, min_frames=fewest)
        if kept is None:
            return self.prompt, sampling
        sampling = sampling.replace(seed=_retry_seed(sampling.seed or 0, self.num_retries))
        prompt = self.prompt.continued(kept, self._later_ids, is_complete=self.is_text_complete)
        return prompt, sampling

    def queue(self, now: float) -> None:
        """It lost its slot and waits for another, to speak its last part again."""
        self._state, self.since = State.QUEUED, now

    def admit(self, slot: Slot, now: float) -> None:
        self.waited_s = now - self.since
        self.slot, self.since, self._state = slot, now, State.RUNNING

    def extend(self, text_ids: Sequence[int], is_last: bool) -> None:
        """More text was given to its slot."""
        self.num_text_ids += len(text_ids)
        self._later_ids += text_ids
        if self.follower is not None and self.mark_ids is not None:
            self.follower.extend(self.mark_ids(text_ids), is_last=is_last)
        self.is_text_complete, self.is_text_sent = is_last, False
        if self._state is State.NEEDS_TEXT:
            self._state = State.RUNNING

    def make(self, num_frames: int, status: SlotStatus) -> None:
        """Frames were made; they are rendered next."""
        self.num_made += num_frames
        if self._state not in OVER:
            self._state = STATE_OF[status]

    def receive(
        self,
        codes: NDArray[np.int64],
        samples: Samples,
        loudness: Loudness,
        status: SlotStatus,
        places: Places = (),
    ) -> None:
        """Rendered frames, and the slot's status after them; ignored after its end."""
        first = self.num_rendered
        num_left = self._num_left(first)
        self.num_rendered += len(codes)
        if self.is_over:
            return
        levels: list[float] = loudness.tolist()
        if not all(map(math.isfinite, levels)):
            self.fail(self._numeric_error("samples", first))
            return
        is_cut = len(codes) > num_left
        if is_cut:
            samples = samples[: num_left * (len(samples) // len(codes))]
            codes, levels = codes[:num_left], levels[:num_left]
        self._has_sound = self._has_sound or max(levels, default=0.0) >= SILENCE
        reason = self._end_of(codes, levels, None if is_cut else status)
        piece = Piece(codes, samples, reason, self._num_stalled)
        if self.follower is not None:
            self._codes.append(codes)
            if (end := self._find_fault(self.follower, places, status)) is not None:
                self._publish_until(end, piece, first)
                return
        self._publish(piece)
        if status == "failed":
            self.fail(self._numeric_error("numbers", self.num_rendered))

    def _end_of(
        self, codes: NDArray[np.int64], levels: Sequence[float], status: SlotStatus | None
    ) -> FinishReason | None:
        """How it ends after these frames, if it does: by itself, at a limit, or by its guard."""
        if status == "stop":
            return "stall" if self.is_guarded and not self._has_sound else "stop"
        if status == "failed":
            return None
        self.is_over_budget = self._num_left(self.num_rendered) <= 0
        if status == "length":
            return "length"
        if self.is_guarded and self.is_text_complete and len(codes):
            self._num_stalled = self._stall.observe(codes, levels)
        if self._num_stalled:
            return "stall"
        return "length" if self.is_over_budget else None

    def _find_fault(self, follower: TextFollower, places: Places, status: SlotStatus) -> int | None:
        """Follow the frames just rendered; returns the first frame that is dropped, if any."""
        if (fault := follower.observe(places)) is None and status != "stop":
            return None
        may_retry = status in ("running", "waiting", "stop")
        while fault is not None:
            is_wanted = fault.kind == "tail" and fault.num_seen < self.sampling.min_frames
            if may_retry and not is_wanted and (end := self._retry(follower, fault)) is not None:
                return end
            follower.accept(fault)
            if fault.kind == "tail" and not is_wanted:
                return max(fault.frame, follower.num_settled_at(fault))
            fault = follower.observe_rest()
        if status == "stop" and (fault := follower.end()) is not None:
            if (end := self._retry(follower, fault)) is not None:
                return end
            follower.accept(fault)
        return None

    def _retry(self, follower: TextFollower, fault: Fault) -> int | None:
        """Drop the frames from the fault on, unless it was tried too often or is settled."""
        if self.num_retries >= MAX_RETRIES or self.is_over_budget:
            return None
        if (frame := follower.resume_frame(fault, self.num_retries)) is None:
            return None
        self.num_retries += 1
        follower.rewind(frame)
        self._masked_frames = min(MAX_MASKED_FRAMES, follower.num_left // 2)
        self._stall, self._num_stalled = StallDetector(), 0
        self.num_made = self.num_rendered = frame
        self._state = State.RETRYING
        return frame

    def _publish_until(self, end: int, piece: Piece, first: int) -> None:
        """Drop the frames from `end` on; `piece` begins at frame `first`.

        Without a retry the utterance ends there: what follows is not in the text.
        """
        assert end >= self.num_final
        self._kept = np.concatenate(self._codes)[:end]
        self._codes = [self._kept]
        if end < first:
            self._published.append(end)
            self._num_published = end
        elif end > first:
            self._published.append(piece.first(end - first))
            self._num_published = end
        if self._state is State.RETRYING:
            self._settle_frames()
        else:
            self._append_end()

    def _append_end(self) -> None:
        """What was kept is all there is."""
        assert self._kept is not None
        self._publish(Piece(self._kept[:0], np.empty(0, np.float32), "stop"))

    def _publish(self, piece: Piece) -> None:
        """Hand frames to the reader, the end with the last of them.

        Of an utterance that is followed, frames that may still be dropped are not yet final.
        """
        num_frames, reason = len(piece.codes), piece.finish_reason
        if not num_frames and reason is None:
            return
        self._published.append(piece)
        self._num_published += num_frames
        if reason is None:
            self._settle_frames()
            return
        self.finish_reason = reason
        self.num_final = self._num_published
        self._state = State.DONE

    def _settle_frames(self) -> None:
        """Count the frames that no fault can drop any more; all while the text runs dry."""
        follower, num_rendered = self.follower, self.num_rendered
        if follower is None:
            self.num_final = self._num_published
            return
        if self._state is State.NEEDS_TEXT:
            follower.num_settled = num_rendered
        num_final = max(follower.num_settled, num_settled(num_rendered))
        self.num_final = max(self.num_final, min(num_final, num_rendered))

    def refuse(self, error: Exception) -> None:
        """The backend does not admit it; what was spoken before a retry stays."""
        if self._kept is None or self.follower is None:
            self.fail(error)
            return
        if (fault := self.follower.end()) is not None:
            self.follower.accept(fault)
        self._append_end()

    def fail(self, error: Exception) -> None:
        if self._state not in OVER:
            self.error, self._state = error, State.FAILED

    def _num_left(self, num_frames: int) -> int:
        """Frames of the budget left after so many; there is none before the text is complete."""
        if not self.has_budget or not self.is_text_complete:
            return self.sampling.max_frames
        return frame_budget(self.num_text_ids) - num_frames

    def _numeric_error(self, what: str, frame: int) -> NumericError:
        return NumericError(
            f"the model's {what} stopped being finite at frame {frame}; "
            "try float32, and check the weights"
        )
