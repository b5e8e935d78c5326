"""Launches the codec's residual units of many rows on Hopper GPUs; see unit.cu."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int, c_uint64
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from vivace.backends.cuda import driver
from vivace.backends.cuda.nvrtc import compile_source
from vivace.backends.cuda_graph.codec.checks import compare_unit, random_unit
from vivace.backends.cuda_graph.codec.operands import (
    ColumnParameters,
    Columns,
    Outputs,
    Processors,
    Rows,
    column_order,
    layer_source,
)
from vivace.backends.cuda_graph.compile import is_collecting
from vivace.backends.cuda_graph.hopper.loading import ARCHITECTURE, load_on_hopper
from vivace.backends.cuda_graph.launch_sizes import num_multiprocessors

TAPS, MAX_DILATION = 7, 9


class UnitArguments(ctypes.Structure):
    """`Unit` of unit.cu."""

    _fields_ = [
        ("x", c_uint64),
        ("weight", c_uint64),
        ("hidden", Columns),
        ("columns", Columns),
        ("rows", Rows),
        ("dilation", c_int),
    ]


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a `unit_*` kernel."""

    rows: int  # of a tile
    depth: int  # channels of a step
    num_threads: int


SHAPES: Final = {192: Shape(128, 64, 384), 96: Shape(64, 96, 384)}  # by channels
COLUMNS: Final = tuple(SHAPES)


class UnitKernels:
    """The compiled kernels of a device."""

    def __init__(self, processors: Processors) -> None:
        self._module = driver.Module(compile_source(kernel_source(), ARCHITECTURE, []))
        self.processors = processors
        self._shared = dict(zip(SHAPES, self._module.numbers("shared_bytes"), strict=True))
        self._functions = {size: self._module.function(f"unit_{size}") for size in SHAPES}
        for size, function in self._functions.items():
            driver.allow_shared(function, self._shared[size])

    def launch(self, num_channels: int, request: UnitArguments) -> None:
        function, shared = self._functions[num_channels], self._shared[num_channels]
        shape, rows = SHAPES[num_channels], request.rows
        num_tiles = rows.num_streams * -(-rows.length // shape.rows)
        num_blocks = self.processors.num_blocks(num_tiles)
        if not is_collecting():
            driver.launch(function, (num_blocks, 1, 1), shape.num_threads, shared, request)


@dataclass(frozen=True, slots=True)
class WideUnit:
    """A residual unit of 96 or 192 channels."""

    kernels: UnitKernels
    weight: Tensor  # packed: the convolution's, then the linear layer's
    hidden: ColumnParameters
    parameters: ColumnParameters
    dilation: int

    @classmethod
    def pack(
        cls,
        kernels: UnitKernels | None,
        first: Tensor,  # float16 [taps, channels, channels]
        second: Tensor,  # float16 [1, channels, channels]
        hidden: ColumnParameters | None,
        parameters: ColumnParameters | None,
        dilation: int,
    ) -> WideUnit | None:
        """None where the kernels do not support the unit."""
        taps, num_channels, in_size = first.shape
        shape = SHAPES.get(num_channels)
        if kernels is None or hidden is None or parameters is None or shape is None:
            return None
        if in_size != num_channels or taps != TAPS or dilation > MAX_DILATION:
            return None
        depth = shape.depth
        packed = torch.cat([first, second[:, column_order(num_channels, second.device)]])
        packed = packed.view(taps + 1, num_channels, num_channels // depth, depth // 8, 8)
        packed = packed.permute(0, 2, 3, 1, 4).contiguous()
        return cls(kernels, packed, hidden, parameters, dilation)

    def is_worthwhile(self, num_streams: int, length: int) -> bool:
        """Whether there is a tile for every multiprocessor."""
        num_tiles = num_streams * (length // SHAPES[len(self.parameters.bias)].rows)
        return num_tiles >= self.kernels.processors.count

    def run(self, x: Tensor, outputs: Outputs) -> None:
        """See `WideLayer.run`."""
        request = UnitArguments(
            x.data_ptr(), self.weight.data_ptr(), self.hidden.columns, self.parameters.columns,
            outputs.rows, self.dilation,
        )  # fmt: skip
        self.kernels.launch(x.shape[2], request)


def load_kernels(device: torch.device, share: float = 1.0) -> UnitKernels | None:
    """None on other GPUs, and where the kernels do not compile or compute wrong numbers."""

    def make() -> UnitKernels:
        return UnitKernels(Processors(num_multiprocessors(device), share))

    return load_on_hopper(device, make, _check, "units of many streams run with Triton's products")


def kernel_source(columns: Sequence[int] = COLUMNS) -> str:
    """The source of the kernels; `columns` are the widths of its products."""
    return layer_source(Path(__file__).with_suffix(".cu"), columns)


def _check(kernels: UnitKernels, device: torch.device) -> None:
    """Compare the kernels with PyTorch on random numbers."""
    for size in SHAPES:
        first, second, parameters = random_unit(TAPS, size, device)
        unit = WideUnit.pack(kernels, first, second, parameters, parameters, 1)
        assert unit is not None
        compare_unit(unit, first, second, parameters)
