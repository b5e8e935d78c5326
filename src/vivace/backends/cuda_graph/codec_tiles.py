"""Tile sizes of the codec's products."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from vivace.backends.cuda_graph.tiles import num_multiprocessors

MOST_WASTE = 4 / 3  # columns that are computed over columns that are there


@dataclass(frozen=True, slots=True)
class Tile:
    rows: int
    columns: int
    depth: int
    parts: int = 1  # of the depth, each summed by other warps
    num_warps: int = 4
    num_stages: int = 3


# From large to small. On an H200, 128 x 64 was the best or next to it in the layers with 768
# channels and fewer, which take most of the time; in those before, 128 x 128 was as fast or faster.
LARGE = (Tile(128, 64, 64), Tile(64, 64, 64), Tile(64, 32, 64))
SMALL = (Tile(32, 32, 64, 2), Tile(32, 16, 128, 4), Tile(16, 32, 128, 4), Tile(16, 16, 128, 4))
SHORTEST_PART = 32


def pick_tile(
    num_rows: int,
    num_columns: int,
    depth: int,
    device: torch.device,
    dtype: torch.dtype,
    *,
    max_rows: int = 128,
) -> Tile:
    """The largest tile that gives every multiprocessor a block, or else the smallest that fits."""
    num_processors = num_multiprocessors(device)
    chosen = SMALL[-1] if num_rows <= 16 else SMALL[1]
    for tile in (*LARGE, *SMALL):
        across = -(-num_columns // tile.columns)
        is_wasteful = across * tile.columns > MOST_WASTE * num_columns
        if (
            tile.rows <= max_rows
            and not is_wasteful
            and (num_rows // tile.rows) * across >= num_processors
        ):
            chosen = tile
            break
    block = _depth(chosen.depth, depth, dtype)
    parts = min(chosen.parts, block // SHORTEST_PART) if dtype == torch.float16 else 1
    return replace(chosen, depth=block, parts=parts)


def _depth(wanted: int, depth: int, dtype: torch.dtype) -> int:
    """float32 takes twice the shared memory; a depth that divides the channels wastes no work."""
    size = wanted if dtype == torch.float16 else wanted // 2
    while size > 32 and depth % size:
        size //= 2
    return size
