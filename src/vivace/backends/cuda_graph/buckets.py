"""Sizes for which graphs are captured. A call uses the smallest sufficient size."""

from __future__ import annotations

from collections.abc import Sequence

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CODEC_PASS = 512  # maximum frames of all slots in one pass; more gain nothing and need memory
PROMPT_ROWS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
TILE = 8  # rows per attention block; each prompt begins at a multiple of it
CODEC_FRAMES = (16, 8, 4, 2, 1)
SHORTEST_SPAN = 256  # positions of the KV cache; each span is four times the previous one


def fit(count: int, sizes: Sequence[int]) -> int | None:
    """The first of the ascending `sizes` that is at least `count`, or None."""
    return next((size for size in sizes if size >= count), None)


def spans(num_positions: int) -> tuple[int, ...]:
    """KV cache lengths for which graphs are captured, up to `num_positions`."""
    sizes = []
    size = SHORTEST_SPAN
    while size < num_positions:
        sizes.append(size)
        size *= 4
    return (*sizes, num_positions)


def largest_batch(num_frames: int) -> int:
    """Maximum number of slots in a codec pass of `num_frames` frames per slot."""
    return min(BATCHES[-1], CODEC_PASS // num_frames)


def split_frames(num_frames: int) -> list[int]:
    """Split `num_frames` into `CODEC_FRAMES` sizes, largest first."""
    parts = []
    for size in CODEC_FRAMES:
        count, num_frames = divmod(num_frames, size)
        parts += [size] * count
    return parts
