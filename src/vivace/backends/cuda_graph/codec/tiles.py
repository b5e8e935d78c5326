"""Tile sizes of the codec's products.

A tile may depend on the batch without changing samples: a tensor core adds the products of one
output in the order of taps and channels for every tile. Only 3xTF32 adds block by block, so its
tiles all have the same depth.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from vivace.backends.cuda_graph.launch_sizes import num_multiprocessors

MOST_WASTE = 4 / 3  # columns that are computed over columns that are there
SPLIT, SINGLE, HALF = "tf32x3", "tf32", "half"  # the first two are Triton's names
SPLIT_DEPTH = 32
MIN_UNIT, MAX_UNIT = 32, 192  # channels of a residual unit that one kernel computes


@dataclass(frozen=True, slots=True)
class Tile:
    rows: int
    columns: int
    depth: int
    num_warps: int = 4
    num_stages: int = 3


# From large to small, the fastest on an H200. Few rows wait for their weights, so small tiles load
# more steps ahead.
WIDE = Tile(128, 128, 64)  # for many blocks of float16
WIDE_WAVES = 4  # blocks per multiprocessor from which WIDE is faster
SHORT = Tile(64, 128, 64)  # instead of WIDE for short sums
MAX_SHORT = 768  # numbers of a short sum
SINGLE_DEPTHS = {16: (128, 4), 32: (64, 4)}  # depth and stages in TF32 by rows
MANY_COLUMNS = 1_024  # of a product in TF32 with few rows, from which these two tiles are faster
SINGLE_WIDE = Tile(16, 32, 256, num_stages=2)
SINGLE_GATED = Tile(16, 16, 256, num_warps=2, num_stages=2)
DEEP = Tile(16, 16, 256, num_warps=4, num_stages=5)  # instead of the smallest tile for few blocks
DEEP_WAVES = 2  # most blocks per multiprocessor: its shared memory is large
LARGE = (Tile(128, 64, 64), Tile(64, 64, 64), Tile(64, 32, 64))
SMALL = (
    Tile(32, 32, 64, num_warps=2, num_stages=8),
    Tile(32, 16, 128, num_warps=2, num_stages=6),
    Tile(16, 32, 128, num_warps=2, num_stages=6),
    Tile(16, 16, 128, num_warps=2, num_stages=8),
)


def pick_tile(
    num_rows: int,
    num_columns: int,
    depth: int,
    device: torch.device,
    precision: str,
    *,
    taps: int = 1,
    is_gated: bool = False,
    max_rows: int = 128,
) -> Tile:
    """The largest tile that gives every multiprocessor a block, or else the smallest."""
    num_processors = num_multiprocessors(device)
    num_wide = num_rows // WIDE.rows * (num_columns // WIDE.columns)
    has_wide = precision == HALF and num_columns % WIDE.columns == 0
    if has_wide and max_rows >= WIDE.rows and num_wide >= WIDE_WAVES * num_processors:
        wide = SHORT if taps == 1 and depth <= MAX_SHORT else WIDE
        return replace(wide, depth=_whole_depth(wide.depth, depth))
    chosen = SMALL[-1]
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
    if precision == HALF:
        num_blocks = -(-num_rows // DEEP.rows) * -(-num_columns // DEEP.columns)
        is_few = chosen == SMALL[-1] and num_blocks <= DEEP_WAVES * num_processors
        if is_few and depth % DEEP.depth == 0:
            return DEEP
        return replace(chosen, depth=_whole_depth(chosen.depth, depth))
    if precision == SPLIT:
        return replace(chosen, depth=SPLIT_DEPTH)
    if chosen.rows == 16 and num_columns >= MANY_COLUMNS:
        tile = SINGLE_GATED if is_gated else SINGLE_WIDE
        return replace(tile, depth=_whole_depth(tile.depth, depth))
    block, num_stages = SINGLE_DEPTHS.get(chosen.rows, (32, 3))
    depth = _whole_depth(block, depth)
    return replace(chosen, depth=depth, num_warps=4, num_stages=num_stages)


@dataclass(frozen=True, slots=True)
class UnitTile:
    """Tile of a residual unit: a block has all columns, in one or two powers of two."""

    head: int  # columns
    tail: int
    depth: int
    rows: int = 64


def pick_unit_tile(num_rows: int, num_channels: int, device: torch.device) -> UnitTile | None:
    """The tile of a float16 residual unit, or None where two products are faster or must be."""
    head = 1 << num_channels.bit_length() - 1
    tail = num_channels - head
    tile = UnitTile(head, tail, _whole_depth(64, num_channels))
    is_fit = MIN_UNIT <= num_channels <= MAX_UNIT and tail in (0, head // 2)
    return tile if is_fit and num_rows // tile.rows >= num_multiprocessors(device) else None


def _whole_depth(block: int, depth: int) -> int:
    """The depth of a tile that divides the channels: it wastes no work."""
    while block > 32 and depth % block:
        block //= 2
    return block
