"""Operands of the codec's kernels for Hopper GPUs, as operands.cuh declares them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int, c_uint64
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from vivace.backends.cuda_graph.hopper.wgmma_source import complete_source

MANY_WAVES = 4  # tiles for each block of a kernel that takes long


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
    """Addresses of a residual and of outputs, float16 [B, T, columns]. 0: there is none."""

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
    """A file of kernels after the files that it needs. `columns`: widths of its products."""
    return complete_source([path.with_name("operands.cuh"), path], "f16", columns)


def address_of(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
