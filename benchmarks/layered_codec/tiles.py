"""How a product of the codec is cut into the tiles of thread blocks."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vivace.backends.cuda_graph.tiles import num_multiprocessors

MOST_WASTE = 4 / 3  # columns that are computed over columns that are there


@dataclass(frozen=True, slots=True)
class Tile:
    rows: int
    columns: int
    depth: int
    num_warps: int = 4
    num_stages: int = 3


LARGE = (Tile(128, 128, 64, 8), Tile(128, 64, 64), Tile(64, 64, 64), Tile(64, 32, 64))
SMALL = (Tile(32, 32, 64), Tile(32, 16, 128), Tile(16, 32, 128), Tile(16, 16, 128))


def pick_tile(
    num_rows: int, num_columns: int, depth: int, device: torch.device, dtype: torch.dtype
) -> Tile:
    """The largest tile that gives every multiprocessor a block, or else the smallest that fits."""
    num_processors = num_multiprocessors(device)
    chosen = SMALL[-1] if num_rows <= 16 else SMALL[1]
    for tile in (*LARGE, *SMALL):
        across = -(-num_columns // tile.columns)
        is_wasteful = across * tile.columns > MOST_WASTE * num_columns
        if not is_wasteful and (num_rows // tile.rows) * across >= num_processors:
            chosen = tile
            break
    return Tile(
        chosen.rows,
        chosen.columns,
        _depth(chosen.depth, depth, dtype),
        chosen.num_warps,
        chosen.num_stages,
    )


def _depth(wanted: int, depth: int, dtype: torch.dtype) -> int:
    """float32 takes twice the shared memory; a depth that divides the channels wastes no work."""
    size = wanted if dtype == torch.float16 else wanted // 2
    while size > 32 and depth % size:
        size //= 2
    return size
