"""Speech that goes on from a reference sometimes says the end of it again first.

Told from codes alone; nothing here knows the text. A text that truly begins with the last words of
the transcript looks the same, so who knows both must look there before cutting.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_FRAMES = 25  # two seconds: a word or three
MAX_SKIPPED = 8  # frames after the words: the silence that enrolment appends, and a breath
MIN_MATCHES = 3  # of codebook 0, which carries what is said
MIN_SHARE = 0.75  # of the run; the model repeats words, not every code
MIN_KINDS = 3  # a steady sound, such as silence, is no word


def leaked_frames(ref_codes: NDArray[np.int64], codes: NDArray[np.int64]) -> int:
    """How many of the first frames of `codes` repeat the end of `ref_codes`; both [T, codebooks].

    The longest such run counts. It ends with a frame that is the reference's own, so cutting it
    takes nothing that is new.
    """
    reference, made = ref_codes[:, 0], codes[:MAX_FRAMES, 0]
    return max(
        (
            _longest_run(reference[: len(reference) - skipped], made)
            for skipped in range(min(MAX_SKIPPED, len(reference)) + 1)
        ),
        default=0,
    )


def _longest_run(reference: NDArray[np.int64], made: NDArray[np.int64]) -> int:
    """The most frames of `made` that begin it and end `reference`."""
    for num_frames in range(min(len(reference), len(made)), MIN_MATCHES - 1, -1):
        tail, head = reference[-num_frames:], made[:num_frames]
        is_same = tail == head
        if (
            is_same[-1]
            and is_same.sum() >= max(MIN_MATCHES, MIN_SHARE * num_frames)
            and len(np.unique(tail[is_same])) >= MIN_KINDS
        ):
            return num_frames
    return 0
