"""Weights in e4m3 as the kernels read them; see `widen` in common.cuh."""

from __future__ import annotations

import torch
from torch import Tensor

from vivace.model.fp8 import power_of_two, to_fp8

ROWS, DEPTH, PADDING = 8, 1024, 16
FP8_CHUNK_BYTES = ROWS * (DEPTH + PADDING)
# Byte order: a 32-bit word holds the two pairs of numbers that one thread feeds to an MMA.
ORDER = [2 * thread + at for thread in range(4) for at in (0, 8, 1, 9)]
BIAS = 120  # exponent bias of bfloat16 less that of e4m3


def pack_fp8(weight: Tensor) -> Tensor:
    """Rounded rows [n, depth] to bytes [n / 8, depth / 1024, 8, 1040].

    A chunk's row is its numbers, each sixteen of them in `ORDER`, and its scale eight times.
    """
    codes, exponents = to_fp8(weight)
    assert torch.equal(codes.float() * power_of_two(exponents), weight.float())
    units, chunks = len(weight) // ROWS, weight.shape[1] // DEPTH
    numbers = codes.view(torch.uint8).view(units, ROWS, chunks, DEPTH // 16, 16)[..., ORDER]
    scales = power_of_two(exponents + BIAS).bfloat16().expand(-1, 8).contiguous()
    return torch.cat(
        (
            numbers.reshape(units, ROWS, chunks, DEPTH),
            scales.view(torch.uint8).view(units, ROWS, 1, PADDING).expand(-1, -1, chunks, -1),
        ),
        dim=-1,
    ).transpose(1, 2).contiguous()  # fmt: skip
