"""One utterance, from its prompt to its last frame: the only object the engine knows."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from vivace.backends.base import Admission, Loudness, Samples, Slot, SlotStatus
from vivace.engine.guard import SILENCE, StallDetector, frame_budget
from vivace.errors import NumericError
from vivace.prompt import Prompt
from vivace.speech import FinishReason, SamplingParams

T = TypeVar("T", bound=np.generic)


class State(Enum):
    QUEUED = auto()  # waits for a slot
    RUNNING = auto()
    NEEDS_TEXT = auto()  # its slot can make no frame before more text comes
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
    _num_answered: int = 0  # requests of its reader that it was woken for
    _state: State = State.QUEUED
    _is_cancelled: bool = False
    _rendered: deque[Piece] = field(default_factory=deque)  # not yet read
    _num_given: int = 0  # frames, to the reader
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
        """Frames made and not yet read."""
        return self.num_made - self.num_read

    @property
    def num_missing(self) -> int:
        """Frames to make for its reader now."""
        return max(0, self.num_wanted - self.num_ahead) if self.state is State.RUNNING else 0

    @property
    def needs_text(self) -> bool:
        """Whether its reader must send text: all frames of what it sent are rendered."""
        is_blocked = self.state is State.NEEDS_TEXT and not self.is_text_sent
        return is_blocked and self.num_made == self.num_rendered

    @property
    def is_ready(self) -> bool:
        """Whether its reader has what it waits for, or need not wait for it."""
        num_there = self._num_given - self.num_read
        return num_there >= self.num_wanted or self.is_over or self.needs_text

    @property
    def has_frames(self) -> bool:
        return bool(self._rendered)

    # -- its reader --------------------------------------------------------------------------

    def take(self, num_frames: int) -> Piece:
        """Up to so many rendered frames, and the end if it follows; its error if there are none."""
        if self.error is not None and not self._rendered:
            raise self.error
        taken: list[Piece] = []
        num_left = num_frames
        while self._rendered and (num_left or not len(self._rendered[0].codes)):
            piece = self._rendered.popleft()
            if len(piece.codes) > num_left:
                self._rendered.appendleft(piece.without(num_left))
                piece = piece.first(num_left)
            taken.append(piece)
            num_left -= len(piece.codes)
        self.num_read += num_frames - num_left
        return join(taken or [NO_FRAMES])

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
        sampling = self.sampling
        most = min(sampling.max_frames, self._num_left(0))
        if most < sampling.max_frames:
            fewest = min(sampling.min_frames, most)
            sampling = sampling.replace(max_frames=most, min_frames=fewest)
        return self.prompt, sampling

    def admit(self, slot: Slot, now: float) -> None:
        self.waited_s = now - self.since
        self.slot, self.since, self._state = slot, now, State.RUNNING

    def extend(self, num_ids: int, is_last: bool) -> None:
        """More text was given to its slot."""
        self.num_text_ids += num_ids
        self.is_text_complete, self.is_text_sent = is_last, False
        if self._state is State.NEEDS_TEXT:
            self._state = State.RUNNING

    def make(self, num_frames: int, status: SlotStatus) -> None:
        """Frames were made; they are rendered next."""
        self.num_made += num_frames
        if self._state not in OVER:
            self._state = STATE_OF[status]

    def receive(
        self, codes: NDArray[np.int64], samples: Samples, loudness: Loudness, status: SlotStatus
    ) -> None:
        """Rendered frames, and the slot's status after them; ignored after its end."""
        num_left = self._num_left(self.num_rendered)
        self.num_rendered += len(codes)
        if self.is_over:
            return
        if not np.isfinite(loudness).all():
            self.fail(self._numeric_error("samples", self.num_rendered - len(codes)))
            return
        is_cut = len(codes) > num_left
        if is_cut:
            samples = samples[: num_left * (len(samples) // len(codes))]
            codes, loudness = codes[:num_left], loudness[:num_left]
        self._has_sound = self._has_sound or bool((loudness >= SILENCE).any())
        self._publish(codes, samples, self._end_of(codes, loudness, None if is_cut else status))
        if status == "failed":
            self.fail(self._numeric_error("numbers", self.num_rendered))

    def _end_of(
        self, codes: NDArray[np.int64], loudness: Loudness, status: SlotStatus | None
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
            self._num_stalled = self._stall.observe(codes, loudness)
        if self._num_stalled:
            return "stall"
        return "length" if self.is_over_budget else None

    def _publish(
        self, codes: NDArray[np.int64], samples: Samples, reason: FinishReason | None
    ) -> None:
        """Hand frames to the reader in one operation, the end with the last of them."""
        self.finish_reason = reason
        if len(codes) or reason is not None:
            self._rendered.append(Piece(codes, samples, reason, self._num_stalled))
            self._num_given += len(codes)
        if reason is not None:
            self._state = State.DONE

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
