"""Operands of the codec's kernels for Hopper GPUs, as codec.cuh declares them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_uint64
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vivace.backends.cuda_graph.wgmma_source import complete_source
from vivace.errors import BackendUnavailableError

WORST_ERROR = 1e-2  # of a kernel's result, relative to PyTorch's


class Columns(ctypes.Structure):
    """Parameters of a layer's outputs; float32 [columns]."""

    _fields_ = [(name, c_uint64) for name in ("bias", "frequency", "inverse_gain")]


class Rows(ctypes.Structure):
    """Residual and outputs; float16 [B, T, columns], `out` may be 0."""

    _fields_ = [(name, c_uint64) for name in ("residual", "out", "active")]


@dataclass(frozen=True, slots=True)
class Outputs:
    """Tensors that a unit writes, before and after its activation, and the residual it adds."""

    residual: Tensor | None
    out: Tensor | None
    active: Tensor  # its streams may be apart

    @property
    def rows(self) -> Rows:
        return Rows(*(address_of(each) for each in (self.residual, self.out, self.active)))


@dataclass(frozen=True, slots=True)
class ColumnParameters:
    """Bias and snake activation of a layer, each float32 [columns]."""

    bias: Tensor
    frequency: Tensor
    inverse_gain: Tensor

    @classmethod
    def spread(cls, num_columns: int, *parameters: Tensor | None) -> ColumnParameters | None:
        """Repeat the parameters of one output step; None where one is missing."""
        known = [each for each in parameters if each is not None]
        if len(known) < len(parameters):
            return None
        return cls(*(each.float().flatten().repeat(num_columns // each.numel()) for each in known))

    def activate(self, y: Tensor) -> Tensor:
        """The snake activation; the frequency is in half turns."""
        return y + self.inverse_gain * torch.sin(torch.pi * self.frequency * y) ** 2

    @property
    def columns(self) -> Columns:
        return Columns(
            *(address_of(each) for each in (self.bias, self.frequency, self.inverse_gain))
        )


def column_order(num_columns: int, device: torch.device) -> Tensor:
    """Columns in the order in which every thread gets eight neighbouring ones of 32."""
    place = torch.arange(num_columns, device=device)
    return 32 * (place // 32) + 8 * (place % 8 // 2) + 2 * (place % 32 // 8) + place % 2


def layer_source(path: Path, columns: Sequence[int]) -> str:
    """A file of kernels after the parts that it follows, for products of these many columns."""
    return complete_source([path.with_name("codec.cuh"), path], "f16", columns)


def compare(found: Tensor, expected: Tensor) -> None:
    error = float((found - expected).norm() / expected.norm())
    if not error < WORST_ERROR:
        raise BackendUnavailableError(f"their results are off by {error:.1e}")


def address_of(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
