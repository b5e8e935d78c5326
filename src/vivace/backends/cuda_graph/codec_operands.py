"""Operands of the codec's kernels for Hopper GPUs, as codec.cuh declares them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int, c_uint64
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from vivace.backends.cuda_graph.wgmma_source import complete_source
from vivace.errors import BackendUnavailableError

MANY_WAVES = 4  # tiles for each block of a kernel that takes long
WORST_ERROR = 1e-2  # of a kernel's result, relative to PyTorch's


@dataclass(frozen=True, slots=True)
class Processors:
    """Multiprocessors that the kernels of a codec may use."""

    count: int
    share: float = 1.0  # of kernels that compute many tiles; frames run on the others

    def num_blocks(self, num_tiles: int, blocks_each: int = 1) -> int:
        """Blocks of a kernel that computes its tiles one after another."""
        most = self.count * blocks_each
        if num_tiles >= MANY_WAVES * most:
            most = int(self.share * most)
        return max(1, min(num_tiles, most))


class Columns(ctypes.Structure):
    """Parameters of a layer's outputs; float32 [columns]."""

    _fields_ = [(name, c_uint64) for name in ("bias", "frequency", "inverse_gain")]


class Rows(ctypes.Structure):
    """Residual and outputs; float16 [B, T, columns]. `residual` and `out` may be 0."""

    _fields_ = [
        *((name, c_uint64) for name in ("residual", "out", "active")),
        *((name, c_int) for name in ("num_streams", "length", "num_columns", "active_stride")),
    ]


@dataclass(frozen=True, slots=True)
class Outputs:
    """Tensors that a layer writes, before and after its activation, and the residual it adds."""

    residual: Tensor | None
    out: Tensor | None
    active: Tensor  # its streams may be apart

    @property
    def rows(self) -> Rows:
        addresses = [address_of(each) for each in (self.residual, self.out, self.active)]
        return Rows(*addresses, *self.active.shape, self.active.stride(0))


class WideLayer(Protocol):
    """Kernels of a layer for many rows."""

    def is_worthwhile(self, num_streams: int, length: int) -> bool:
        """Whether there is enough work for most multiprocessors."""

    def run(self, x: Tensor, outputs: Outputs) -> None:
        """x: float16 [B, reach + T, channels], which begins with the past."""


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


def convolved(x: Tensor, weight: Tensor) -> Tensor:
    """[B, T, in] and [taps, out, in] to [B, T - taps + 1, out], in float32."""
    filters = weight.float().permute(1, 2, 0)
    return F.conv1d(x.float().transpose(1, 2), filters).transpose(1, 2)


def random_unit(
    taps: int, size: int, device: torch.device
) -> tuple[Tensor, Tensor, ColumnParameters]:
    """Weights of a unit's convolution and linear layer, and parameters of both."""
    generator = torch.Generator(device).manual_seed(0)
    draw = partial(torch.randn, device=device, generator=generator)
    first, second = (
        draw(count, size, size).mul((count * size) ** -0.5).half() for count in (taps, 1)
    )
    return first, second, ColumnParameters(*(draw(size).abs() for _ in range(3)))


def compare_unit(
    unit: WideLayer, first: Tensor, second: Tensor, parameters: ColumnParameters
) -> None:
    """Compare a residual unit without dilation, whose layers have these parameters, with PyTorch.

    Raises `BackendUnavailableError` if the results differ.
    """
    taps, size, _ = first.shape
    generator = torch.Generator(first.device).manual_seed(1)
    draw = partial(torch.randn, device=first.device, generator=generator)
    x, residual = draw(2, taps - 1 + 300, size).half(), draw(2, 300, size).half()
    out, active = torch.empty_like(residual), torch.empty_like(residual)
    unit.run(x, Outputs(residual, out, active))
    hidden = parameters.activate(parameters.bias + convolved(x, first)).half()
    expected = parameters.bias + convolved(hidden, second) + residual
    compare(out, expected)
    compare(active, parameters.activate(expected))


def compare(found: Tensor, expected: Tensor) -> None:
    """Raises `BackendUnavailableError` if the relative distance is large."""
    error = float((found - expected).norm() / expected.norm())
    if not error < WORST_ERROR:
        raise BackendUnavailableError(f"their results are off by {error:.1e}")


def address_of(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
