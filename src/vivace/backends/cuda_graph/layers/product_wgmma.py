"""Launches matrix products of many rows on Hopper GPUs; see product_wgmma.cu."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from vivace.backends.cuda import driver
from vivace.backends.cuda.driver import TensorMap
from vivace.backends.cuda.nvrtc import compile_source
from vivace.backends.cuda_graph.compile import is_collecting
from vivace.backends.cuda_graph.hopper.loading import ARCHITECTURE, compare, load_on_hopper
from vivace.backends.cuda_graph.hopper.wgmma_source import DEPTH, ROW_BYTES, complete_source
from vivace.backends.cuda_graph.layers.tiles import MANY, NUM_PARTS, WGMMA_ROWS, can_copy_tiles
from vivace.model.layers import RMSNorm

FEWEST_ROWS = 33  # fewer run in Triton's kernels with smaller tiles
NORM_THREADS = 128
NORM_CHUNK = 8 * NORM_THREADS
NORM_SIZES = (NORM_CHUNK, 2 * NORM_CHUNK)


class ProductArguments(ctypes.Structure):
    """`Product` of product_wgmma.cu."""

    _fields_ = [
        ("x", TensorMap),
        ("weight", TensorMap),
        ("out", c_uint64),
        *((name, c_int) for name in ("num_rows", "num_columns", "num_steps")),
        ("padding", c_int * 11),  # to a multiple of 64 bytes
    ]


class NormArguments(ctypes.Structure):
    """`Norm` of product_wgmma.cu."""

    _fields_ = [
        *((name, c_uint64) for name in ("parts", "residual", "weight", "out", "normed")),
        ("num_rows", c_int),
        ("eps", c_float),
    ]


@dataclass(frozen=True, slots=True)
class WgmmaTiles:
    """Tile sizes of a product; the order of a sum does not depend on them."""

    rows: int
    columns: int  # of gate and of up, if the product is gated
    num_stages: int

    @property
    def num_threads(self) -> int:
        return 2 * self.rows + 32

    def num_bytes(self, *, is_gated: bool) -> int:
        """Shared memory; `Sizes` of product_wgmma.cu."""
        stage = (self.rows + self.columns * (1 + is_gated)) * ROW_BYTES
        return self.num_stages * (stage + 16) + 1024


# (rows up to, columns from, fastest tiles in benchmarks/layer_chain.py on an H200 or None where
# Triton's kernels are faster); the first row that fits counts
Choices = tuple[tuple[int, int, WgmmaTiles | None], ...]
GATED: Final[Choices] = (
    (64, 0, WgmmaTiles(64, 24, 6)),
    (128, 6144, WgmmaTiles(128, 48, 6)),
    (128, 0, WgmmaTiles(64, 48, 6)),
    (256, 6144, WgmmaTiles(128, 48, 3)),
    (256, 0, WgmmaTiles(128, 48, 6)),
    (512, 0, None),
    (MANY, 6144, None),
    (MANY, 0, WgmmaTiles(256, 48, 4)),
)
SPLIT: Final[Choices] = (
    (64, 2048, WgmmaTiles(64, 64, 8)),
    (128, 2048, WgmmaTiles(128, 64, 6)),
    (128, 0, None),
    (256, 2048, WgmmaTiles(128, 64, 4)),
    (256, 0, WgmmaTiles(128, 64, 6)),
    (512, 0, None),
    (MANY, 0, WgmmaTiles(256, 128, 4)),
)


class WgmmaProducts:
    """The kernels of a device, each compiled when it is first needed."""

    def __init__(self) -> None:
        self._modules: list[driver.Module] = []
        self._functions: dict[tuple[WgmmaTiles, bool] | int, c_void_p] = {}

    def prepare(self, cut: WgmmaTiles, *, is_gated: bool) -> None:
        """Compile the kernel of a product."""
        self._product(cut, is_gated=is_gated)

    def prepare_norm(self, size: int) -> None:
        self._norm(size)

    def multiply(self, cut: WgmmaTiles, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """x [M, K] times weight. The product is gated if `out` is a matrix.

        Gated: weight is gate over up, [2N, K], and out [M, N]. Else: weight is [N, K] and out the
        partial sums of product_kernels.split_linear_kernel, float32 [parts, M, N].
        """
        is_gated = out.dim() == 2
        num_rows, num_columns = out.shape[-2:]
        num_parts = 1 if is_gated else len(out)
        request = ProductArguments(
            driver.map_tiles(x, cut.rows, DEPTH), driver.map_tiles(weight, cut.columns, DEPTH),
            out.data_ptr(), num_rows, num_columns, x.shape[1] // DEPTH // num_parts,
        )  # fmt: skip
        grid = (num_columns // cut.columns, -(-num_rows // cut.rows), num_parts)
        function, shared = self._product(cut, is_gated=is_gated), cut.num_bytes(is_gated=is_gated)
        driver.launch(function, grid, cut.num_threads, shared, request, is_dependent=True)

    def add_and_normalise(
        self, parts: Tensor, residual: Tensor, norm: RMSNorm, out: Tensor, normed: Tensor
    ) -> None:
        """residual [M, N] plus the sum of parts [4, M, N], and its norm; N in `NORM_SIZES`."""
        num_rows, size = residual.shape
        addresses = [each.data_ptr() for each in (parts, residual, norm.weight, out, normed)]
        request = NormArguments(*addresses, num_rows, norm.eps)
        function, grid = self._norm(size), (num_rows, 1, 1)
        driver.launch(function, grid, NORM_THREADS, 0, request, is_dependent=True)

    def _product(self, cut: WgmmaTiles, *, is_gated: bool) -> c_void_p:
        if (cut, is_gated) not in self._functions:
            name = "wgmma_gated" if is_gated else "wgmma_parts"
            sizes = (cut.rows, cut.columns, int(is_gated), cut.num_stages)
            kernel = f"PRODUCT({name}, {', '.join(map(str, sizes))})"
            source = _kernel_source(kernel, cut.columns * (1 + is_gated))
            function = self._compile(name, source)
            driver.allow_shared(function, cut.num_bytes(is_gated=is_gated))
            self._functions[cut, is_gated] = function
        return self._functions[cut, is_gated]

    def _norm(self, size: int) -> c_void_p:
        if size not in self._functions:
            name = "add_and_normalise"
            source = _kernel_source(f"NORM({name}, {size // NORM_CHUNK})", 8)
            self._functions[size] = self._compile(name, source)
        return self._functions[size]

    def _compile(self, name: str, source: str) -> c_void_p:
        self._modules.append(driver.Module(compile_source(source, ARCHITECTURE, [])))
        return self._modules[-1].function(name)


@dataclass(frozen=True, slots=True)
class WgmmaProduct:
    """The kernel of one product."""

    kernels: WgmmaProducts
    cut: WgmmaTiles

    @classmethod
    def find(cls, x: Tensor, weight: Tensor, *, is_gated: bool) -> WgmmaProduct | None:
        """None on other GPUs, for few rows and for sizes that do not fit."""
        cut = find_tiles(x, weight, is_gated)
        kernels = None if cut is None else load_products(x.device)
        return None if cut is None or kernels is None else cls(kernels, cut)

    def run(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        if is_collecting():
            self.kernels.prepare(self.cut, is_gated=out.dim() == 2)
        else:
            self.kernels.multiply(self.cut, x, weight, out)


def find_tiles(x: Tensor, weight: Tensor, is_gated: bool) -> WgmmaTiles | None:
    """The tiles of a product; None where its sizes do not fit or Triton's kernels are faster."""
    num_rows, depth = x.shape
    num_columns = len(weight) // (1 + is_gated)
    if num_rows < FEWEST_ROWS or depth % (DEPTH * (1 if is_gated else NUM_PARTS)):
        return None
    if x.dtype != torch.bfloat16 or not can_copy_tiles(x, weight, WGMMA_ROWS):
        return None
    choices = [
        cut
        for most_rows, fewest_columns, cut in (GATED if is_gated else SPLIT)
        if num_rows <= most_rows and num_columns >= fewest_columns
    ]
    cut = choices[0] if choices else None
    return None if cut is None or num_columns % cut.columns else cut


@cache
def load_products(device: torch.device) -> WgmmaProducts | None:
    """None on other GPUs, and where the kernels do not compile or compute wrong numbers."""
    instead = "products of many rows run with Triton's kernels"
    return load_on_hopper(device, WgmmaProducts, _check, instead)


def _kernel_source(kernel: str, columns: int) -> str:
    """The source with one kernel, whose products have `columns` columns."""
    source = complete_source([Path(__file__).with_suffix(".cu")], "bf16", [columns])
    return source.replace("// -- KERNELS OF THE HOST --\n", kernel + "\n")


def _check(kernels: WgmmaProducts, device: torch.device) -> None:
    """Compare a product with PyTorch on random numbers."""
    generator = torch.Generator(device).manual_seed(0)
    x, weight = (
        torch.randn(64, 512, device=device, generator=generator).bfloat16() for _ in range(2)
    )
    parts = torch.empty(NUM_PARTS, 64, 64, device=device)
    kernels.multiply(WgmmaTiles(64, 64, 8), x, weight, parts)
    expected = x.float() @ weight.float().T
    compare(parts.sum(0), expected)
