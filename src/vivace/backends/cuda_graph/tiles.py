"""How products are cut among programs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

NUM_WARPS = 4  # one number for all norms: a reduction's order follows it
SMALLEST_SHARED = 99 * 2**10  # of any GPU with bfloat16
RESERVE = 2**14  # shared memory that a product needs beside its stages
MANY = 2**31  # rows


@dataclass(frozen=True, slots=True)
class Tiles:
    """How a product is cut among programs; a sum's order does not depend on it."""

    rows: int
    columns: int
    depth: int
    num_stages: int
    num_warps: int = NUM_WARPS


# The fastest of benchmarks/kernels.py on an H200, each for up to so many rows.
SMALL = ((16, Tiles(16, 32, 256, 4)), (MANY, Tiles(32, 64, 256, 3)))
HOPPER = (
    (16, Tiles(16, 32, 256, 4)),
    (64, Tiles(64, 32, 128, 4)),
    (128, Tiles(64, 64, 128, 4)),
    (256, Tiles(64, 128, 64, 4)),
    (MANY, Tiles(128, 128, 64, 3, num_warps=8)),
)
RESIDUAL = (  # of one depth, which the parts of the sum follow; few columns: more programs
    (16, Tiles(16, 16, 256, 4)),
    (64, Tiles(32, 16, 256, 3)),
    (256, Tiles(32, 32, 256, 3)),
    (MANY, Tiles(64, 64, 256, 2)),
)


def tiles(out: Tensor, depth: int, *, has_residual: bool = False, is_gated: bool = False) -> Tiles:
    """In fewer stages where memory is less."""
    num_rows, num_columns = out.shape
    choices = RESIDUAL if has_residual else HOPPER if _is_hopper(out.device) else SMALL
    cut = next(cut for most, cut in choices if num_rows <= most)
    columns = cut.columns if num_columns > 2048 or has_residual else min(cut.columns, 32)
    block = min(cut.depth, max(64, power_of_two(depth)))
    stage_bytes = (cut.rows + columns * (1 + is_gated)) * block * out.element_size()
    num_stages = min(cut.num_stages, 1 + _shared_memory(out.device) // stage_bytes)
    return replace(cut, columns=columns, depth=block, num_stages=max(2, num_stages))


@cache
def _is_hopper(device: torch.device) -> bool:
    """Tiles of 64 rows take other instructions there; tests/gpu holds them to the same bits."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9


@cache
def _shared_memory(device: torch.device) -> int:
    """Bytes that a program's stages may take."""
    if device.type != "cuda":
        return 2**17
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", SMALLEST_SHARED)) - RESERVE


def power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()
