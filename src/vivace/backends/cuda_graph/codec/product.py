"""Launches the codec's layers of many rows on Hopper GPUs; see product.cu."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from vivace.backends.cuda import driver
from vivace.backends.cuda.driver import TensorMap
from vivace.backends.cuda.nvrtc import compile_source
from vivace.backends.cuda_graph.codec.checks import convolved
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
from vivace.backends.cuda_graph.hopper.loading import ARCHITECTURE, compare, load_on_hopper
from vivace.backends.cuda_graph.hopper.wgmma_source import DEPTH, ROW_BYTES
from vivace.backends.cuda_graph.launch_sizes import num_multiprocessors

TILE_ROWS = 128
MULTIPLIERS = 256  # threads of a block that multiply
LEAST_COLUMNS = 43  # of 128 rows for each multiprocessor, below which Triton's tiles are faster


class ProductArguments(ctypes.Structure):
    """`Product` of product.cu."""

    _fields_ = [
        ("x", TensorMap),
        ("weight", TensorMap),
        ("columns", Columns),
        ("rows", Rows),
        *((name, c_int) for name in ("num_taps", "dilation", "num_blocks", "span")),
        ("padding", c_int * 12),  # to a multiple of 64 bytes
    ]


@dataclass(frozen=True, slots=True)
class Shape:
    """A kernel of product.cu."""

    columns: int  # of a tile
    num_stages: int
    is_alone: bool  # on its multiprocessor; else two blocks share one
    cost: float = 1.0  # of a product, measured on an H200
    kind: str = "product"

    @property
    def name(self) -> str:
        return f"{self.kind}_{self.columns}"

    @property
    def num_threads(self) -> int:
        return MULTIPLIERS + (128 if self.is_alone else 32)

    @property
    def num_bytes(self) -> int:
        """Shared memory, with its alignment."""
        return self.num_stages * ((TILE_ROWS + self.columns) * ROW_BYTES + 16) + 1024

    @property
    def num_blocks(self) -> int:
        """Blocks of a multiprocessor."""
        return 1 if self.is_alone else 2

    def time(self, num_row_tiles: int, num_columns: int, num_steps: int, processors: int) -> float:
        """Estimated time, in products of a tile's rows, one column and `DEPTH` channels."""
        num_tiles = num_row_tiles * (num_columns // self.columns)
        num_waves = -(-num_tiles // (self.num_blocks * processors))
        fixed_steps = 23 if self.is_alone else 15  # start and results of a tile
        return num_waves * self.num_blocks * self.columns * (num_steps + fixed_steps) * self.cost


SHAPES: Final = (
    Shape(256, 4, is_alone=True),
    Shape(192, 5, is_alone=True),
    Shape(128, 3, is_alone=False, cost=1.12, kind="paired"),
    Shape(96, 3, is_alone=False, cost=1.22, kind="paired"),
)
COLUMNS: Final = tuple(shape.columns for shape in SHAPES)


class CodecProducts:
    """The compiled kernels of a device."""

    def __init__(self, processors: Processors) -> None:
        self._module = driver.Module(compile_source(kernel_source(), ARCHITECTURE, []))
        self.processors = processors
        self._functions = {shape: self._module.function(shape.name) for shape in SHAPES}
        for shape, function in self._functions.items():
            driver.allow_shared(function, shape.num_bytes)

    def launch(self, shape: Shape, request: ProductArguments) -> None:
        rows = request.rows
        num_row_tiles = _num_row_tiles(rows.num_streams, rows.length)
        num_tiles = num_row_tiles * (rows.num_columns // shape.columns)
        num_blocks = self.processors.num_blocks(num_tiles, shape.num_blocks)
        function = self._functions[shape]
        if not is_collecting():
            driver.launch(function, (num_blocks, 1, 1), shape.num_threads, shape.num_bytes, request)


@dataclass(frozen=True, slots=True)
class WideProduct:
    """A convolution or linear layer, with the next layer's snake activation."""

    kernels: CodecProducts
    weight: Tensor  # float16 [taps, columns, channels], columns in the order of `column_order`
    parameters: ColumnParameters
    dilation: int

    @classmethod
    def pack(
        cls,
        kernels: CodecProducts | None,
        weight: Tensor,  # float16 [taps, columns, channels]
        parameters: ColumnParameters | None,
        dilation: int,
    ) -> WideProduct | None:
        """None where the kernels do not support the layer."""
        _, num_columns, num_channels = weight.shape
        if kernels is None or parameters is None or num_channels % DEPTH or num_columns % 32:
            return None
        if all(num_columns % shape.columns for shape in SHAPES):
            return None
        packed = weight[:, column_order(num_columns, weight.device)].contiguous()
        return cls(kernels, packed, parameters, dilation)

    @property
    def reach(self) -> int:
        """Past inputs of an output."""
        return (len(self.weight) - 1) * self.dilation

    def is_worthwhile(self, num_streams: int, length: int) -> bool:
        """Whether there is enough work for most multiprocessors."""
        num_columns = _num_row_tiles(num_streams, length) * self.weight.shape[1]
        return num_columns >= LEAST_COLUMNS * self.kernels.processors.count

    def run(self, x: Tensor, outputs: Outputs) -> None:
        """See `WideLayer.run`."""
        batch, length, _ = outputs.active.shape
        span, shape = _span(length), self._shape(_num_row_tiles(batch, length))
        request = ProductArguments(
            driver.map_tiles(x, TILE_ROWS // span, span, DEPTH),
            driver.map_tiles(self.weight.flatten(0, 1), shape.columns, DEPTH),
            self.parameters.columns, outputs.rows,
            len(self.weight), self.dilation, x.shape[2] // DEPTH, span,
        )  # fmt: skip
        self.kernels.launch(shape, request)

    def _shape(self, num_row_tiles: int) -> Shape:
        """The kernel with the shortest estimated time."""
        num_taps, num_columns, num_channels = self.weight.shape
        num_steps, processors = num_taps * num_channels // DEPTH, self.kernels.processors.count
        return min(
            (shape for shape in SHAPES if num_columns % shape.columns == 0),
            key=lambda shape: shape.time(num_row_tiles, num_columns, num_steps, processors),
        )


def load_products(device: torch.device, share: float = 1.0) -> CodecProducts | None:
    """None on other GPUs, and where the kernels do not compile or compute wrong numbers."""
    instead = "convolutions of many streams run with Triton's products"

    def make() -> CodecProducts:
        return CodecProducts(Processors(num_multiprocessors(device), share))

    return load_on_hopper(device, make, _check, instead)


def kernel_source(columns: Sequence[int] = COLUMNS) -> str:
    """The source of the kernels; `columns` are the widths of its products."""
    return layer_source(Path(__file__).with_suffix(".cu"), columns)


def _span(length: int) -> int:
    """Times of one stream in a tile: the largest power of two that divides the length."""
    return min(TILE_ROWS, length & -length)


def _num_row_tiles(num_streams: int, length: int) -> int:
    span = _span(length)
    return length // span * -(-num_streams * span // TILE_ROWS)


def _check(kernels: CodecProducts, device: torch.device) -> None:
    """Compare a convolution with PyTorch on random numbers."""
    generator = torch.Generator(device).manual_seed(0)
    draw = partial(torch.randn, device=device, generator=generator)
    taps, num_columns, num_channels = 3, 384, 128
    x, residual = draw(3, 302, num_channels).half(), draw(3, 300, num_columns).half()
    weight = draw(taps, num_columns, num_channels).mul((taps * num_channels) ** -0.5).half()
    parameters = ColumnParameters(*(draw(num_columns).abs() for _ in range(3)))
    product = WideProduct.pack(kernels, weight, parameters, 1)
    assert product is not None
    out, active = torch.empty_like(residual), torch.empty_like(residual)
    product.run(x, Outputs(residual, out, active))
    expected = convolved(x, weight) + parameters.bias + residual
    compare(out, expected)
    compare(active, parameters.activate(expected))
