"""The number of frames in each chunk of a stream."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import cast

from vivace.errors import RequestError
from vivace.options import ChunkFrames
from vivace.speech import as_whole_number, shown

WHOLE = (8, 16)  # no client waits for the first chunk; 16 first would need two turns
TOGETHER = 8  # fewer than the frames made ahead, so that the readers of a batch stay in step


def chunk_sizes(chunk_frames: ChunkFrames) -> Iterator[int]:
    """Frames of each chunk, without end: the last number repeats. Raises RequestError below 1."""
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
