"""One utterance's life: taken in when audio is first asked for, let go whatever happens."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from vivace.backends.base import Samples, SlotStatus
from vivace.engine.guard import StallDetector, frame_budget, has_sound
from vivace.engine.leak import drop_leak
from vivace.engine.live_text import LiveText
from vivace.engine.piece import Piece, join
from vivace.engine.scheduler import Ticket
from vivace.errors import NumericError, RequestError
from vivace.prompt import Prompt
from vivace.speech import FinishReason, SamplingParams, as_whole_number, shown

RAMP = (1, 2, 4, 8)  # frames per chunk: first audio soon, then fewer seams
WHOLE = 16  # nobody waits for the first chunk
TOGETHER = 8  # with less buffered than is made ahead, readers stay in step and turns full

ChunkFrames = int | Iterable[int]


def chunk_sizes(chunk_frames: ChunkFrames) -> Iterator[int]:
    """Frames of each chunk, endlessly: the last number repeats. All must be 1 or more."""
    if isinstance(chunk_frames, Iterator):
        return _repeat_last(map(_check_size, chunk_frames))
    is_one = isinstance(chunk_frames, (str, bytes)) or not isinstance(chunk_frames, Iterable)
    given = (chunk_frames,) if is_one else tuple(cast("Iterable[int]", chunk_frames))
    sizes = [_check_size(size) for size in given]
    if not sizes:
        raise RequestError("chunk_frames must be 1 or more, or several such numbers, not none")
    return _repeat_last(iter(sizes))


def _repeat_last(sizes: Iterator[int]) -> Iterator[int]:
    size = 0
    for size in sizes:
        yield size
    if not size:
        raise RequestError("chunk_frames is an iterator that gave no number")
    yield from itertools.repeat(size)


def _check_size(size: object) -> int:
    number = as_whole_number("chunk_frames", size)
    if number < 1:
        raise RequestError(f"chunk_frames must be 1 or more, not {shown(number)}")
    return number


class Runner(Protocol):
    """What a session asks of the engine."""

    def join(self, session: Session) -> None: ...

    def advance(self, session: Session, num_frames: int) -> None: ...

    def extend(self, session: Session, text_ids: Sequence[int], is_last: bool) -> None: ...

    def leave(self, session: Session) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """What a session begins with."""

    prompt: Prompt
    leak: NDArray[np.int64] | None = None  # codes whose end may be heard again, and must not be


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """`receive` and `fail` are called by whoever does the engine's turn, the rest by its reader."""

    engine: Runner
    write_opening: Callable[[], Opening]  # called once, with the first of the text at hand
    sampling: SamplingParams
    num_text_ids: int = 0  # of a text known in full
    live: LiveText | None = None
    is_guarded: bool = True  # against stalls
    has_budget: bool = True  # of frames, by the length of the text
    keeps_codes: bool = False  # for an utterance that goes on from this one
    num_frames: int = 0  # handed out
    admit_ms: float = 0.0
    is_over_budget: bool = False
    is_cancelled: bool = False  # set by any thread
    is_dry: bool = False  # it needs text, and all frames before that are there
    finish_reason: FinishReason | None = None
    codes: list[NDArray[np.int64]] = field(default_factory=list)
    ticket: Ticket = field(default_factory=Ticket)
    opening: Opening = field(init=False)
    _made: deque[Piece] = field(default_factory=deque)  # and not yet handed out
    _num_made: int = 0
    _stall: StallDetector = field(default_factory=StallDetector)
    _end: FinishReason | None = None
    _num_stalled: int = 0
    _has_sound: bool = False
    _error: Exception | None = None

    @property
    def num_ids(self) -> int:
        """Of the text, as far as it is known."""
        return self.num_text_ids if self.live is None else self.live.num_ids

    def take_codes(self) -> NDArray[np.int64]:
        """All codes made, [frames, codebooks], if they were kept; once."""
        codes, self.codes = self.codes, []
        return np.concatenate(codes) if codes else np.empty((0, 0), dtype=np.int64)

    def limit_frames(self, num_frames: int) -> None:
        """What is left of a limit that several utterances share."""
        min_frames = min(self.sampling.min_frames, num_frames)
        self.sampling = self.sampling.replace(max_frames=num_frames, min_frames=min_frames)

    def cancel(self) -> None:
        """Stop at once and wake its reader; from any thread, at any time."""
        self.is_cancelled = True
        self.engine.leave(self)

    # -- its reader --------------------------------------------------------------------------

    def pieces(self, sizes: Iterator[int]) -> Iterator[Piece]:
        """Pieces of at most these numbers of frames, until the utterance ends."""
        if self.is_cancelled:
            return
        self.opening = self.write_opening()
        if self.is_cancelled:
            return
        try:
            self.engine.join(self)
            pieces = self._take_pieces(sizes)
            leak = self.opening.leak
            for piece in pieces if leak is None else drop_leak(pieces, leak):
                if self.keeps_codes:
                    self.codes.append(piece.codes)
                yield piece
        finally:
            self.engine.leave(self)

    def _take_pieces(self, sizes: Iterator[int]) -> Iterator[Piece]:
        for num_frames in sizes:
            self._wait_for(num_frames)
            if self.is_cancelled:
                return
            piece = self._take(num_frames)
            self.num_frames += len(piece.codes)
            self.finish_reason = piece.finish_reason
            yield piece
            if piece.finish_reason is not None:
                return

    def _wait_for(self, num_frames: int) -> None:
        """Until at least one frame is there or the utterance ends; reads live text when dry."""
        while True:
            self.engine.advance(self, num_frames)
            if self._error is not None and not self._made:
                raise self._error
            if self._made or self.is_over or self.is_cancelled:
                return
            assert self.live is not None
            text_ids = self.live.take()
            if self.is_cancelled:
                return
            self.engine.extend(self, text_ids, self.live.is_done)

    def _take(self, num_frames: int) -> Piece:
        """Up to so many of the frames that are there; the last says how it ended."""
        taken = [self._made.popleft() for _ in range(min(num_frames, len(self._made)))]
        self.ticket.num_buffered -= len(taken)
        is_last = self._end is not None and not self._made
        if not taken:
            codes = np.empty((0, self.opening.prompt.codes.shape[1]), dtype=np.int64)
            taken = [Piece(codes, np.empty(0, dtype=np.float32))]
        whole = join(taken)
        return Piece(
            whole.codes,
            whole.samples,
            self._end if is_last else None,
            self._num_stalled if is_last else 0,
        )

    # -- the engine's turn -------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether its reader has what it waits for, or waits in vain."""
        is_enough = len(self._made) >= self.ticket.num_wanted
        return is_enough or self.is_over or self.is_cancelled or self.is_dry

    @property
    def is_over(self) -> bool:
        return self._end is not None or self._error is not None

    def fail(self, error: Exception) -> None:
        if not self.is_over:
            self._error = error

    def receive(self, codes: NDArray[np.int64], samples: Samples, status: SlotStatus) -> None:
        """Frames, and what became of the slot; what comes after the end is not wanted."""
        if self.is_over:
            return
        if not np.isfinite(samples).all():
            self.fail(self._numeric_error("samples"))
            return
        num_left = self._num_left()
        is_cut = len(codes) > num_left
        if is_cut:
            samples = samples[: num_left * (len(samples) // len(codes))]
            codes = codes[:num_left]
        self._keep(codes, samples)
        if status == "failed":
            self.fail(self._numeric_error("numbers"))
        elif status == "stop" and not is_cut:
            self._end = "stall" if self.is_guarded and not self._has_sound else "stop"
        elif status == "length" and not is_cut:
            self._end = "length"
        else:
            self._guard(codes, samples)
        self.is_dry = status == "waiting" and not self.is_over

    def _numeric_error(self, what: str) -> NumericError:
        return NumericError(
            f"the model's {what} stopped being finite at frame {self._num_made}; "
            "try float32, and check the weights"
        )

    def _keep(self, codes: NDArray[np.int64], samples: Samples) -> None:
        for index, sound in enumerate(samples.reshape(len(codes), -1) if len(codes) else ()):
            self._made.append(Piece(codes[index : index + 1], sound))
        self._num_made += len(codes)
        self._has_sound = self._has_sound or has_sound(samples, len(codes))
        self.ticket.has_begun |= len(codes) > 0

    def _guard(self, codes: NDArray[np.int64], samples: Samples) -> None:
        """End what does not end by itself."""
        if self.is_guarded and self._is_text_in() and len(codes):
            self._num_stalled = self._stall.observe(codes, samples)
        if self._num_stalled:
            self._end = "stall"
        elif self._num_left() <= 0:
            self.is_over_budget = True
            self._end = "length"

    def _is_text_in(self) -> bool:
        return self.live is None or self.live.is_done

    def _num_left(self) -> int:
        """Frames until the budget is spent; while text still comes, every frame is paid by it."""
        if not self.has_budget or not self._is_text_in():
            return self.sampling.max_frames
        return frame_budget(self.num_ids) - self._num_made
