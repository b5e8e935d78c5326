"""Launches norm and matrix product kernels: output allocation, grids and options."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from vivace.backends.cuda_graph.compile import is_collecting
from vivace.backends.cuda_graph.launch_sizes import power_of_two
from vivace.backends.cuda_graph.layers import product_kernels
from vivace.backends.cuda_graph.layers.product_wgmma import NORM_SIZES, WgmmaProduct, load_products
from vivace.backends.cuda_graph.layers.tiles import (
    GROUP,
    NUM_PARTS,
    NUM_WARPS,
    Tiles,
    can_copy_tiles,
    split_tiles,
    tiles,
)
from vivace.model.layers import RMSNorm

MAX_FUSED_NORM_ROWS = 2  # more rows are normalised once, not in every block of a product
MAX_EARLY_ROWS = 64  # up to which the product after a norm prefetches its weights during it


@dataclass(frozen=True, slots=True)
class Residual:
    """Rows of the residual stream, [M, K], and the norm that follows."""

    rows: Tensor
    norm: RMSNorm
    known: Tensor | None = None  # normalised rows, if already computed

    def every(self, step: int) -> Residual:
        """The last row of every `step` rows."""
        known = None if self.known is None else self.known[step - 1 :: step]
        return Residual(self.rows[step - 1 :: step], self.norm, known)

    def normalised(self) -> Tensor:
        return rms_norm(self.rows, self.norm) if self.known is None else self.known

    def linear(self, weight: Tensor, *, is_gated: bool = False) -> Tensor:
        """The normalised rows times weight [N, K]."""
        if len(self.rows) <= MAX_FUSED_NORM_ROWS:
            return linear(self.rows, weight, norm=self.norm, is_gated=is_gated)
        return linear(self.normalised(), weight, is_gated=is_gated)

    def add_linear(self, x: Tensor, weight: Tensor, norm: RMSNorm) -> Residual:
        """These rows plus x [M, D] times weight [K, D], with `norm` after them."""
        wide = WgmmaProduct.find(x, weight, is_gated=False)
        if wide is not None:
            parts = torch.empty(NUM_PARTS, *self.rows.shape, device=x.device)
            wide.run(x, weight, parts)
            return Residual(*add_parts(parts, self.rows, norm))
        cut = split_tiles(self.rows, x.shape[1])
        if cut is None:
            return Residual(residual_linear(x, weight, self.rows), norm)
        return Residual(*split_linear(x, weight, self.rows, norm, cut))


def rms_norm(x: Tensor, norm: RMSNorm) -> Tensor:
    """Rows [M, K], each contiguous."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    product_kernels.rms_norm_kernel[(len(x),)](
        x, norm.weight, out, x.shape[1], x.stride(0), norm.eps,
        BLOCK=power_of_two(x.shape[1]), IS_EARLY=len(x) <= MAX_EARLY_ROWS,
        num_warps=NUM_WARPS, **options(x),
    )  # fmt: skip
    return out


def linear(
    x: Tensor,
    weight: Tensor,
    *,
    norm: RMSNorm | None = None,  # for up to `MAX_FUSED_NORM_ROWS` rows
    bias: Tensor | None = None,
    is_gated: bool = False,
) -> Tensor:
    """norm(x) [M, K] times weight [N, K]; `is_gated`: the weight is gate over up, [2N, K]."""
    num_rows, depth = x.shape
    columns = weight.shape[0] // 2 if is_gated else weight.shape[0]
    out = torch.empty(num_rows, columns, dtype=x.dtype, device=x.device)
    wide = WgmmaProduct.find(x, weight, is_gated=True) if is_gated and norm is None else None
    if wide is not None:
        wide.run(x, weight, out)
        return out
    cut = tiles(out, depth, is_gated=is_gated)
    is_even = _is_even(cut, out, depth)
    product_kernels.linear_kernel[_grid(out, cut)](
        x, weight, bias, None if norm is None else norm.weight, out,
        *_descriptors(x, weight, cut, is_even=is_even),
        num_rows, columns, depth, x.stride(0), 0.0 if norm is None else norm.eps,
        NORM_ROWS=0 if norm is None else num_rows, HAS_BIAS=bias is not None,
        IS_GATED=is_gated, IS_EVEN=is_even, **_cut(cut, depth), **options(x),
    )  # fmt: skip
    return out


def residual_linear(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    """residual [M, N] plus x [M, K] times weight [N, K]."""
    num_rows, depth = x.shape
    out = torch.empty_like(residual)
    cut = tiles(out, depth, has_residual=True)
    product_kernels.residual_linear_kernel[_grid(out, cut)](
        x, weight, residual, out, num_rows, len(weight), depth, x.stride(0),
        IS_EVEN=_is_even(cut, out, depth), **_cut(cut, depth), **options(x),
    )  # fmt: skip
    return out


def split_linear(
    x: Tensor, weight: Tensor, residual: Tensor, norm: RMSNorm, cut: Tiles
) -> tuple[Tensor, RMSNorm, Tensor]:
    """`residual_linear` for many rows, with the norm; also returns the normalised rows."""
    (num_rows, depth), columns = x.shape, len(weight)
    parts = torch.empty(NUM_PARTS, num_rows, columns, device=x.device)
    grid = (*_grid(residual, cut), NUM_PARTS)
    product_kernels.split_linear_kernel[grid](
        x, weight, parts, *_descriptors(x, weight, cut, is_even=cut.depth == GROUP // NUM_PARTS),
        num_rows, columns, depth, x.stride(0), GROUP=GROUP, **_cut(cut, depth), **options(x),
    )  # fmt: skip
    return add_parts(parts, residual, norm)


def add_parts(parts: Tensor, residual: Tensor, norm: RMSNorm) -> tuple[Tensor, RMSNorm, Tensor]:
    """residual [M, N] plus the sum of the parts [4, M, N], and the normalised rows."""
    num_rows, columns = residual.shape
    out, normed = torch.empty_like(residual), torch.empty_like(residual)
    kernels = load_products(residual.device) if columns in NORM_SIZES else None
    if kernels is not None:
        kernels.prepare_norm(columns)
        if not is_collecting():
            kernels.add_and_normalise(parts, residual, norm, out, normed)
        return out, norm, normed
    product_kernels.residual_norm_kernel[(num_rows,)](
        parts, residual, norm.weight, out, normed, num_rows, columns, norm.eps,
        BLOCK=power_of_two(columns), IS_EARLY=num_rows <= MAX_EARLY_ROWS,
        num_warps=NUM_WARPS, **options(residual),
    )  # fmt: skip
    return out, norm, normed


def _grid(out: Tensor, cut: Tiles) -> tuple[int, int]:
    return -(-out.shape[0] // cut.rows), -(-out.shape[1] // cut.columns)


def _is_even(cut: Tiles, out: Tensor, depth: int) -> bool:
    return depth % cut.depth == 0 and out.shape[1] % cut.columns == 0


def _descriptors(
    x: Tensor, weight: Tensor, cut: Tiles, *, is_even: bool
) -> tuple[TensorDescriptor | None, TensorDescriptor | None]:
    """Tensor descriptors, with which Hopper copies whole tiles, or None for other GPUs."""
    if not (is_even and can_copy_tiles(x, weight, cut.rows)):
        return None, None
    return (
        TensorDescriptor.from_tensor(x, [cut.rows, cut.depth]),
        TensorDescriptor.from_tensor(weight, [cut.columns, cut.depth]),
    )


def _cut(cut: Tiles, depth: int) -> dict[str, int]:
    return {
        "BLOCK_M": cut.rows,
        "BLOCK_N": cut.columns,
        "BLOCK_K": cut.depth,
        "DEPTH": power_of_two(depth),
        "num_warps": cut.num_warps,
        "num_stages": cut.num_stages,
    }


def options(tensor: Tensor, *, is_rotating: bool = False) -> dict[str, bool]:
    """Launch options: programmatic dependent launch from Hopper on, and no FMA in RoPE.

    With an FMA the rotation would round once where the reference rounds twice. Other kernels may
    use FMA; the tests compare their exact bits.
    """
    can = tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) >= (9, 0)
    return {"OVERLAPS": can, "launch_pdl": can, "enable_fp_fusion": not is_rotating}
