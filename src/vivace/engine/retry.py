"""Continues an utterance from its first frames after a part was spoken wrongly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vivace.backends.base import Admission
from vivace.prompt import Prompt
from vivace.speech import MAX_SEED, SamplingParams

MAX_MASKED_FRAMES = 25  # in which the end of speech is not drawn after an early end
SEED_STRIDE = 0x9E3779B97F4A7C15  # between the seeds of retries


def retry_seed(seed: int, number: int) -> int:
    """The seed of a retry, derived from the request's seed. `number` 0: the first attempt."""
    return (seed + number * SEED_STRIDE) % (MAX_SEED + 1)


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

    def mask_end(self, num_ids_left: int) -> None:
        """Do not draw the end of speech in the next frames, as `num_ids_left` are not spoken."""
        self._num_masked = min(MAX_MASKED_FRAMES, num_ids_left // 2)

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
