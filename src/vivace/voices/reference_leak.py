"""Finds leaks: in-context speech that begins by repeating the end of its reference.

Detection uses codes only. A text that begins with the last words of the transcript looks the same,
so check `shares_words` before cutting.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from vivace.text.scripts import HAN_AND_KANA

MAX_LEAKED_FRAMES = 25  # two seconds: one to three words
MAX_SKIPPED = 8  # frames of appended silence and breath after the words
MIN_MATCHES = 3  # equal codes of codebook 0, which carries the words
MIN_SHARE = 0.75  # of the run; repeated words do not repeat every code
MIN_KINDS = 3  # different codes; silence and other steady sounds have fewer

_WORDS = re.compile(rf"[{HAN_AND_KANA}]|[^\W_]+(?:['’][^\W_]+)*")


def shares_words(before: str, after: str) -> bool:
    """Whether `after` begins with the words (or CJK letters) at the end of `before`."""
    tail, head = _WORDS.findall(before.casefold()), _WORDS.findall(after.casefold())
    longest = min(len(tail), len(head))
    return any(tail[-count:] == head[:count] for count in range(1, longest + 1))


def leaked_frames(ref_codes: NDArray[np.int64], codes: NDArray[np.int64]) -> int:
    """Number of first frames of `codes` that repeat the end of `ref_codes`; both [T, codebooks].

    The longest matching run counts. Its last frame matches the reference, so cutting the run
    removes no new speech.
    """
    reference, made = ref_codes[:, 0], codes[:MAX_LEAKED_FRAMES, 0]
    return max(
        (
            _longest_run(reference[: len(reference) - skipped], made)
            for skipped in range(min(MAX_SKIPPED, len(reference)) + 1)
        ),
        default=0,
    )


def may_leak(ref_codes: NDArray[np.int64], codes: NDArray[np.int64]) -> bool:
    """Whether more frames are needed to decide if these first ones are a leak."""
    count = len(codes)
    if count >= MAX_LEAKED_FRAMES:
        return False
    reference, made = ref_codes[-MAX_LEAKED_FRAMES - MAX_SKIPPED :, 0], codes[:, 0]
    starts = range(len(reference) - count)
    num_forgiven = max(1, round((1 - MIN_SHARE) * count))
    return any((reference[i : i + count] != made).sum() <= num_forgiven for i in starts)


def _longest_run(reference: NDArray[np.int64], made: NDArray[np.int64]) -> int:
    """The length of the longest start of `made` that matches the end of `reference`."""
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
