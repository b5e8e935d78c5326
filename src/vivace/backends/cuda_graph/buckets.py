"""The sizes that graphs are captured for; a call uses the smallest that is large enough."""

from __future__ import annotations

from collections.abc import Sequence

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CODEC_BATCHES = BATCHES[:7]  # larger ones gain nothing and take memory
CODEC_PASS = 512  # frames of all slots in one pass: twice as many take twice the memory
PROMPT_ROWS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
TILE = 8  # rows per attention block; each prompt begins at a multiple of it
CODEC_FRAMES = (16, 8, 4, 2, 1)
SHORTEST_SPAN = 256  # positions of the KV cache; each span is four times the previous one


def fit(count: int, sizes: Sequence[int]) -> int | None:
    """The first of the ascending `sizes` that is at least `count`, or None."""
    return next((size for size in sizes if size >= count), None)


def spans(num_positions: int) -> tuple[int, ...]:
    """The KV cache lengths that graphs are captured for, up to `num_positions`."""
    sizes = []
    size = SHORTEST_SPAN
    while size < num_positions:
        sizes.append(size)
        size *= 4
    return (*sizes, num_positions)


def largest_batch(num_frames: int) -> int:
    """The most slots of a codec pass with so many frames of each."""
    return min(CODEC_BATCHES[-1], CODEC_PASS // num_frames)


def split_frames(num_frames: int) -> list[int]:
    """A number of frames as a sum of `CODEC_FRAMES` sizes, largest first."""
    parts = []
    for size in CODEC_FRAMES:
        count, num_frames = divmod(num_frames, size)
        parts += [size] * count
    return parts
