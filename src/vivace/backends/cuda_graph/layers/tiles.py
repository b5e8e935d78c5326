"""Tile sizes of the matrix product kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from vivace.backends.cuda_graph.launch_sizes import power_of_two

NUM_WARPS = 4  # the same for all norms: the order of a reduction depends on it
SMALLEST_SHARED = 99 * 2**10  # bytes per block; every GPU with bfloat16 has at least this
RESERVE = 2**14  # bytes of shared memory that a kernel needs besides its pipeline stages
MANY = 2**31  # rows
WGMMA_ROWS = 64  # rows of a tile from which Hopper's WGMMA is used
NUM_PARTS = 4  # PARTS of product_kernels.py
GROUP = 256  # numbers along k per round over the parts


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tile sizes of a matrix product; the order of a sum does not depend on them."""

    rows: int
    columns: int
    depth: int
    num_stages: int
    num_warps: int = NUM_WARPS


# (rows up to, fastest tiles in benchmarks/layer_chain.py on an H200)
SMALL = ((16, Tiles(16, 32, 256, 4)), (MANY, Tiles(32, 64, 256, 3)))
HOPPER = (
    (16, Tiles(16, 32, 256, 4)),
    (64, Tiles(64, 32, 128, 4)),
    (128, Tiles(64, 64, 128, 4)),
    (256, Tiles(128, 64, 64, 6)),
    (MANY, Tiles(128, 128, 64, 3, num_warps=8)),
)
RESIDUAL = (  # equal depth: the split of the sum depends on it
    (16, Tiles(16, 16, GROUP, 4)),
    (64, Tiles(32, 16, GROUP, 3)),
    (256, Tiles(32, 32, GROUP, 3)),
    (MANY, Tiles(64, 64, GROUP, 2)),
)
SPLIT = (  # residual products whose parts are separate blocks
    (16, None),
    (128, Tiles(64, 64, 64, 6)),
    (256, Tiles(128, 64, 64, 6)),
    (512, Tiles(128, 64, 64, 4)),
    (MANY, None),
)


def tiles(out: Tensor, depth: int, *, has_residual: bool = False, is_gated: bool = False) -> Tiles:
    """The tiles of a product, with fewer pipeline stages where shared memory is small."""
    num_rows, num_columns = out.shape
    choices = RESIDUAL if has_residual else HOPPER if _is_hopper(out.device) else SMALL
    cut = next(cut for most, cut in choices if num_rows <= most)
    columns = cut.columns if num_columns > 2048 or has_residual else min(cut.columns, 32)
    block = min(cut.depth, max(64, power_of_two(depth)))
    stage_bytes = (cut.rows + columns * (1 + is_gated)) * block * out.element_size()
    num_stages = min(cut.num_stages, 1 + _shared_memory(out.device) // stage_bytes)
    return replace(cut, columns=columns, depth=block, num_stages=max(2, num_stages))


def split_tiles(out: Tensor, depth: int) -> Tiles | None:
    """Tiles of a residual product in parts; None where one part is faster."""
    num_rows, num_columns = out.shape
    cut = next(cut for most, cut in SPLIT if num_rows <= most)
    if cut is None or not _is_hopper(out.device):
        return None
    is_even = depth % (NUM_PARTS * cut.depth) == 0 and num_columns % cut.columns == 0
    return cut if is_even else None


def can_copy_tiles(x: Tensor, weight: Tensor, num_rows: int) -> bool:
    """Whether Hopper's tile copies (TMA) can read these rows and are faster for `num_rows` of them.

    Every row must begin at a multiple of 16 bytes.
    """
    step = 16 // x.element_size()
    is_aligned = all(each.data_ptr() % 16 == each.stride(0) % step == 0 for each in (x, weight))
    return num_rows >= WGMMA_ROWS and is_aligned and _is_hopper(x.device)


@cache
def _is_hopper(device: torch.device) -> bool:
    """On Hopper, tiles of 64 rows use WGMMA; tests/gpu check that results are bit-identical."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9


@cache
def _shared_memory(device: torch.device) -> int:
    """Bytes available to a block's pipeline stages."""
    if device.type != "cuda":
        return 2**17
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", SMALLEST_SHARED)) - RESERVE
