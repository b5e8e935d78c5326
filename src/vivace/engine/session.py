"""One request's life: admitted when audio is first asked for, released whatever happens."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from vivace.backends.base import Backend, Frames, Samples, Slot
from vivace.engine.guard import StallDetector, frame_budget
from vivace.engine.live_text import LiveText
from vivace.errors import NumericError, RequestError
from vivace.prompt import Prompt
from vivace.speech import FinishReason, SamplingParams

RAMP = (1, 2, 4, 8)  # frames per chunk: first audio soon, then fewer seams
WHOLE = 16  # nobody waits for the first chunk


def chunk_sizes(chunk_frames: int | Sequence[int] | Iterator[int]) -> Iterator[int]:
    """Frames of each chunk, endlessly: the last number repeats. All must be 1 or more."""
    if isinstance(chunk_frames, Iterator):
        return chunk_frames
    sizes = (chunk_frames,) if isinstance(chunk_frames, int) else tuple(chunk_frames)
    if not sizes or not all(isinstance(n, int) and n >= 1 for n in sizes):
        raise RequestError(
            f"chunk_frames must be 1 or more, or a list of such numbers, not {chunk_frames!r}"
        )
    return itertools.chain(sizes, itertools.repeat(sizes[-1]))


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """The next part of an utterance; the last one may be empty."""

    codes: NDArray[np.int64]  # [frames, codebooks]
    samples: Samples
    finish_reason: FinishReason | None = None  # set on the last piece
    num_stalled: int = 0  # frames at the end, this piece's and earlier ones, that say nothing


@dataclass(slots=True, kw_only=True)
class Session:
    backend: Backend
    lock: Lock  # around every call of the backend
    write_prompt: Callable[[], Prompt]  # called once, with the first of the text at hand
    sampling: SamplingParams
    num_text_ids: int = 0  # of a text known in full
    live: LiveText | None = None
    is_guarded: bool = True  # against stalls
    has_budget: bool = True  # of frames, by the length of the text
    num_frames: int = 0
    admit_ms: float = 0.0
    is_over_budget: bool = False
    is_cancelled: bool = False  # set by another thread: stop at the next frame boundary
    finish_reason: FinishReason | None = None
    keeps_codes: bool = False  # for an utterance that goes on from this one
    codes: list[NDArray[np.int64]] = field(default_factory=list)

    def take_codes(self) -> NDArray[np.int64]:
        """All codes made, [frames, codebooks], if they were kept; once."""
        codes, self.codes = self.codes, []
        return np.concatenate(codes) if codes else np.empty((0, 0), dtype=np.int64)

    def pieces(self, sizes: Iterator[int]) -> Iterator[Piece]:
        """Pieces of at most these numbers of frames, until the utterance ends."""
        slot = self._admit()
        stall = StallDetector()
        try:
            for num_frames in sizes:
                piece = self._make(slot, num_frames, stall)
                if self.is_cancelled:
                    return
                self.finish_reason = piece.finish_reason
                if self.keeps_codes:
                    self.codes.append(piece.codes)
                yield piece
                if piece.finish_reason is not None:
                    return
        finally:
            with self.lock:
                self.backend.release(slot)

    def _admit(self) -> Slot:
        prompt = self.write_prompt()
        began = time.perf_counter()
        with self.lock:
            slot = self.backend.admit(prompt, self.sampling)
        self.admit_ms = 1000 * (time.perf_counter() - began)
        return slot

    def _make(self, slot: Slot, num_frames: int, stall: StallDetector) -> Piece:
        frames, samples = self._step(slot, min(num_frames, self._num_left()))
        codes, status = frames.of(0), frames.status[0]
        self.num_frames += len(codes)
        if status == "failed":
            raise NumericError(
                f"the model's numbers stopped being finite at frame {self.num_frames}; "
                "try float32, and check the weights"
            )
        if status in ("stop", "length"):
            return Piece(codes, samples, "stop" if status == "stop" else "length")
        is_watched = self.is_guarded and self._is_text_in()
        num_stalled = stall.observe(codes, samples) if is_watched and len(codes) else 0
        if num_stalled:
            return Piece(codes, samples, "stall", num_stalled)
        self.is_over_budget = self._num_left() <= 0
        return Piece(codes, samples, "length" if self.is_over_budget else None)

    def _step(self, slot: Slot, num_frames: int) -> tuple[Frames, Samples]:
        """At least one frame, unless the utterance ends; waits for live text without the lock."""
        while True:
            with self.lock:
                frames = self.backend.step([slot], num_frames)
                if frames.lengths[0] or frames.status[0] != "waiting":
                    return frames, self.backend.render([slot], frames)[0]
            assert self.live is not None
            ids = self.live.take()
            if self.is_cancelled:
                return frames, np.empty(0, dtype=np.float32)
            with self.lock:
                self.backend.extend(slot, ids, self.live.is_done)

    def _is_text_in(self) -> bool:
        return self.live is None or self.live.is_done

    def _num_left(self) -> int:
        """Frames until the budget is spent; while text still comes, every frame is paid by it."""
        if not self.has_budget or not self._is_text_in():
            return self.sampling.max_frames
        num_ids = self.num_text_ids if self.live is None else self.live.num_ids
        return frame_budget(num_ids) - self.num_frames
