"""The CUDA device and random tensors of the kernel tests."""

from __future__ import annotations

import torch
from torch import Tensor

from vivace.model.layers import RMSNorm

CUDA = torch.device("cuda")


def has_hopper() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def random_rows(*shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape, device=CUDA) * scale).bfloat16()


def make_norm(size: int) -> RMSNorm:
    norm = RMSNorm(size, 1e-6).to(CUDA, torch.bfloat16)
    norm.weight.data = random_rows(size)
    return norm
