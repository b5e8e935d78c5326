"""Finds parts of an utterance that were spoken wrongly, and continues from the frames before."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from vivace.backends.base import Admission, Places, SlotStatus
from vivace.engine.utterances.follower import Fault, TextFollower
from vivace.prompt import Prompt
from vivace.speech import MAX_SEED, SamplingParams

MAX_RETRIES = 3  # of one utterance
MAX_MASKED_FRAMES = 25  # in which the end of speech is not drawn after an early end
SEED_STRIDE = 0x9E3779B97F4A7C15  # between the seeds of retries


def retry_seed(seed: int, number: int) -> int:
    """The seed of a retry, derived from the request's seed. `number` 0: the first attempt."""
    return (seed + number * SEED_STRIDE) % (MAX_SEED + 1)


def find_wrong_frame(
    follower: TextFollower,
    places: Places,
    status: SlotStatus,
    min_frames: int,  # of the utterance; an invented tail before them is kept
    rewind: Callable[[Fault], int | None],  # begins a retry and returns its first frame, if it may
) -> int | None:
    """Follow the new frames through the text. Returns the first frame to drop, if any."""
    left = iter(places)
    if (fault := follower.observe(left)) is None and status != "stop":
        return None
    may_retry = status in ("running", "waiting", "stop")
    while fault is not None:
        is_wanted = fault.kind == "tail" and fault.num_seen < min_frames
        if may_retry and not is_wanted and (frame := rewind(fault)) is not None:
            return frame
        follower.accept(fault)
        if fault.kind == "tail" and not is_wanted:
            return max(fault.frame, follower.num_settled_at(fault))
        fault = follower.observe(left)
    if status == "stop" and (fault := follower.end()) is not None:
        if (frame := rewind(fault)) is not None:
            return frame
        follower.accept(fault)
    return None


class RetryState:
    """The frames of an utterance that is checked, and what its next prompt continues from."""

    __slots__ = ("_codes", "_later_ids", "_num_masked", "kept")

    def __init__(self) -> None:
        self._codes: list[NDArray[np.int64]] = []  # of all frames
        self.kept: NDArray[np.int64] | None = None  # codes that the slot's prompt continues from
        self._num_masked = 0  # frames after those, in which the end of speech is not drawn
        self._later_ids: list[int] = []  # text appended after the prompt

    @property
    def num_kept(self) -> int:
        return 0 if self.kept is None else len(self.kept)

    def extend(self, text_ids: Sequence[int]) -> None:
        self._later_ids += text_ids

    def add(self, codes: NDArray[np.int64]) -> None:
        self._codes.append(codes)

    def keep(self, num_frames: int) -> None:
        """Drop the frames from `num_frames` on."""
        self.kept = np.concatenate(self._codes)[:num_frames]
        self._codes = [self.kept]

    def begin(self, follower: TextFollower, fault: Fault, num_retries: int) -> int | None:
        """Rewind the follower. Returns the first frame to make again.

        None after too many retries, or if all is final. In the next frames, the end of speech is
        not drawn, as some text is not spoken.
        """
        if num_retries >= MAX_RETRIES:
            return None
        if (frame := follower.resume_frame(fault, num_retries)) is None:
            return None
        follower.rewind(frame)
        self._num_masked = min(MAX_MASKED_FRAMES, follower.num_left // 2)
        return frame

    def admission(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        max_frames: int,  # of the whole utterance
        number: int,  # of the retry; 0: the first attempt
        is_complete: bool,  # the text
    ) -> Admission:
        """Prompt and sampling of the next slot."""
        most = max_frames - self.num_kept
        fewest = min(max(sampling.min_frames - self.num_kept, self._num_masked), most)
        if (most, fewest) != (sampling.max_frames, sampling.min_frames):
            sampling = sampling.replace(max_frames=most, min_frames=fewest)
        if self.kept is None:
            return prompt, sampling
        continued = prompt.continued(self.kept, self._later_ids, is_complete=is_complete)
        return continued, sampling.replace(seed=retry_seed(sampling.seed or 0, number))
