"""Numbers that grids and blocks of kernels are computed from."""

from __future__ import annotations

from functools import cache

import torch


@cache
def num_multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()
