# mypy: ignore-errors
"""Triton kernels of norms and matrix products, which round where the reference does (model/ops.py).

They are batch-invariant: the order of every sum is independent of the batch size. Products
accumulate along k in one sequence or in `PARTS`, norms reduce one row each.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

LINE = tl.constexpr(64)  # bfloat16 numbers per cache line
PARTS = tl.constexpr(
    4
)  # partial sums before a residual; each takes GROUP // PARTS numbers along k in turn


@triton.jit
def wait_for_last(OVERLAPS: tl.constexpr, IS_EARLY: tl.constexpr = False):
    """Programmatic dependent launch: wait for the previous kernel, then let the next one start.

    In the other order, waiting kernels would occupy multiprocessors that the working kernel needs.
    Because of this order, all kernels but the previous one have ended, so a kernel may read their
    results before the wait.

    `IS_EARLY` lets the next kernel start first. It is for short kernels before a product, which
    reads only weights before its own wait.
    """
    if OVERLAPS and IS_EARLY:
        gdc_launch_dependents()
    if OVERLAPS:
        gdc_wait()
    if OVERLAPS and not IS_EARLY:
        gdc_launch_dependents()


@triton.jit
def _fetch_ahead(rows, size, LINES: tl.constexpr, STRIDE: tl.constexpr = LINE, first=0):
    """Prefetch weight rows into L2 before the wait: they do not depend on earlier kernels.

    The lines begin at number `first` of each row and are `STRIDE` apart.
    """
    k = tl.minimum(first + tl.arange(0, LINES) * STRIDE, size - LINE)
    at = (rows[:, None] + k[None, :]).to(tl.int64)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def _row_scale(x, size, eps, BLOCK: tl.constexpr):
    """1 / rms of one row."""
    k = tl.arange(0, BLOCK)
    wide = tl.load(x + k, mask=k < size, other=0.0).to(tl.float32)
    return tl.math.rsqrt(tl.sum(wide * wide, 0) / size + eps)


@triton.jit
def scaled(x, scale, weight, dtype: tl.constexpr):
    """Normalise and round, then multiply by the weight and round, as the reference does."""
    normed = (x.to(tl.float32) * scale).to(dtype).to(tl.float32)
    return (normed * weight.to(tl.float32)).to(dtype)


@triton.jit
def silu(x, dtype: tl.constexpr):
    wide = x.to(tl.float32)
    return (wide / (1.0 + tl.exp(-wide))).to(dtype)


@triton.jit
def _normalise(x, weight, out, size, eps, BLOCK: tl.constexpr):
    """The norm of one row."""
    dtype: tl.constexpr = x.dtype.element_ty
    scale = _row_scale(x, size, eps, BLOCK)
    k = tl.arange(0, BLOCK)
    value = tl.load(x + k, mask=k < size, other=0.0)
    factor = tl.load(weight + k, mask=k < size, other=0.0)
    tl.store(out + k, scaled(value, scale, factor, dtype), mask=k < size)


@triton.jit
def rms_norm_kernel(
    x, weight, out, size, x_stride, eps,
    BLOCK: tl.constexpr, IS_EARLY: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    wait_for_last(OVERLAPS, IS_EARLY)
    row = tl.program_id(0)
    _normalise(x + row * x_stride, weight, out + row * size, size, eps, BLOCK)


@triton.jit(do_not_specialize=["num_rows"])
def linear_kernel(
    x, weight, bias, norm_weight, out,
    x_tiles, weight_tiles,  # tensor descriptors of x and weight, or None
    num_rows, n_size, k_size, x_stride, eps,
    NORM_ROWS: tl.constexpr,  # rows to normalise in this kernel; 0: x is normalised already
    HAS_BIAS: tl.constexpr,
    IS_GATED: tl.constexpr,  # silu(x W) * (x U), U after W
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    DEPTH: tl.constexpr, IS_EVEN: tl.constexpr,  # k_size, rounded up to a power of two
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """out[m, n] = sum over k of norm(x)[m, k] * weight[n, k], then bias or gating."""
    dtype: tl.constexpr = x.dtype.element_ty
    row, column = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    m = row + tl.arange(0, BLOCK_M)
    n = column + tl.arange(0, BLOCK_N)
    w_rows = weight + n.to(tl.int64) * k_size
    u_rows = w_rows + n_size.to(tl.int64) * k_size
    if OVERLAPS and IS_EVEN and DEPTH >= LINE:
        _fetch_ahead(w_rows, k_size, DEPTH // LINE)
        if IS_GATED:
            _fetch_ahead(u_rows, k_size, DEPTH // LINE)
    wait_for_last(OVERLAPS)
    is_row = m < num_rows
    scale = tl.full((BLOCK_M,), 1.0, tl.float32)
    if NORM_ROWS > 0:
        for i in tl.static_range(NORM_ROWS):
            value = _row_scale(x + i * x_stride, k_size, eps, DEPTH)
            scale = tl.where(m == i, value, scale)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    up_acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k_size, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)[None, :]
        x_mask = is_row[:, None] if IS_EVEN else is_row[:, None] & (k < k_size)
        w_mask = (n < n_size)[:, None] & (k < k_size)
        if x_tiles is None:
            a = tl.load(x + m[:, None] * x_stride + k, mask=x_mask, other=0.0)
            w_at = w_rows[:, None] + k
            w = tl.load(w_at) if IS_EVEN else tl.load(w_at, mask=w_mask, other=0.0)
        else:
            a, w = x_tiles.load([row, start]), weight_tiles.load([column, start])
        if NORM_ROWS > 0:
            factor = tl.load(norm_weight + k, mask=k < k_size, other=0.0)
            a = scaled(a, scale[:, None], factor, dtype)
        acc = tl.dot(a, tl.trans(w), acc, input_precision="ieee")
        if IS_GATED:
            if x_tiles is None:
                u_at = u_rows[:, None] + k
                u = tl.load(u_at) if IS_EVEN else tl.load(u_at, mask=w_mask, other=0.0)
            else:
                u = weight_tiles.load([n_size + column, start])
            up_acc = tl.dot(a, tl.trans(u), up_acc, input_precision="ieee")
    if HAS_BIAS:
        acc += tl.load(bias + n, mask=n < n_size, other=0.0).to(tl.float32)[None, :]
    y = acc.to(dtype)
    if IS_GATED:
        y = silu(y, dtype)
        y = (y.to(tl.float32) * up_acc.to(dtype).to(tl.float32)).to(dtype)
    at = m[:, None] * n_size + n[None, :]
    tl.store(out + at, y, mask=is_row[:, None] & (n < n_size)[None, :])


@triton.jit
def _sum_parts(acc):
    """[PARTS, M, N] to [M, N], as (0 + 1) + (2 + 3)."""
    pairs = tl.reshape(tl.permute(acc, (1, 2, 0)), (acc.shape[1], acc.shape[2], 2, 2))
    even, odd = tl.split(pairs)
    first, second = tl.split(even + odd)
    return first + second


@triton.jit(do_not_specialize=["num_rows"])
def residual_linear_kernel(
    x, weight, residual, out,
    num_rows, n_size, k_size, x_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    DEPTH: tl.constexpr, IS_EVEN: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """out = residual + x W; the sum over k is split among warps to shorten its latency."""
    dtype: tl.constexpr = x.dtype.element_ty
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    w_rows = weight + n.to(tl.int64) * k_size
    if OVERLAPS and IS_EVEN and DEPTH >= LINE:
        _fetch_ahead(w_rows, k_size, DEPTH // LINE)
    wait_for_last(OVERLAPS)
    is_row = m < num_rows
    part: tl.constexpr = BLOCK_K // PARTS
    within = tl.arange(0, PARTS)[:, None, None] * part + tl.arange(0, part)[None, None, :]
    acc = tl.zeros((PARTS, BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k_size, BLOCK_K):
        k = start + within
        x_mask = is_row[None, :, None] if IS_EVEN else is_row[None, :, None] & (k < k_size)
        w_mask = (n < n_size)[None, :, None] & (k < k_size)
        a = tl.load(x + m[None, :, None] * x_stride + k, mask=x_mask, other=0.0)
        w_at = w_rows[None, :, None] + k
        w = tl.load(w_at) if IS_EVEN else tl.load(w_at, mask=w_mask, other=0.0)
        acc = tl.dot(a, tl.permute(w, (0, 2, 1)), acc, input_precision="ieee")
    y = _sum_parts(acc).to(dtype).to(tl.float32)
    at = m[:, None] * n_size + n[None, :]
    mask = is_row[:, None] & (n < n_size)[None, :]
    before = tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + at, (before + y).to(dtype), mask=mask)


@triton.jit(do_not_specialize=["num_rows"])
def split_linear_kernel(
    x, weight, parts,
    x_tiles, weight_tiles,  # tensor descriptors of x and weight, or None
    num_rows, n_size, k_size, x_stride,
    GROUP: tl.constexpr,  # BLOCK_K of residual_linear_kernel
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    DEPTH: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """The partial sums of residual_linear_kernel in separate blocks: x W as [PARTS, M, N].

    n_size is a multiple of BLOCK_N and k_size of PARTS * BLOCK_K. With descriptors, BLOCK_K is
    GROUP // PARTS.
    """
    row, column = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    m = row + tl.arange(0, BLOCK_M)
    n = column + tl.arange(0, BLOCK_N)
    part = tl.program_id(2)
    size: tl.constexpr = GROUP // PARTS
    j = tl.arange(0, BLOCK_K)
    within = part * size + j // size * GROUP + j % size
    w_rows = weight + n.to(tl.int64) * k_size
    if OVERLAPS and size == LINE:
        _fetch_ahead(w_rows, k_size, DEPTH // GROUP, GROUP, part * size)
    wait_for_last(OVERLAPS)
    is_row = (m < num_rows)[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k_size, BLOCK_K * PARTS):
        if x_tiles is None:
            k = (start + within)[None, :]
            a = tl.load(x + m[:, None] * x_stride + k, mask=is_row, other=0.0)
            w = tl.load(w_rows[:, None] + k)
        else:
            first = start + part * size
            a, w = x_tiles.load([row, first]), weight_tiles.load([column, first])
        acc = tl.dot(a, tl.trans(w), acc, input_precision="ieee")
    at = (part * num_rows + m)[:, None] * n_size + n[None, :]
    tl.store(parts + at, acc, mask=is_row)


@triton.jit(do_not_specialize=["num_rows"])
def residual_norm_kernel(
    parts, residual, weight, out, normed, num_rows, size, eps,
    BLOCK: tl.constexpr, IS_EARLY: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """out = residual + the sum of the parts, and its norm."""
    dtype: tl.constexpr = residual.dtype.element_ty
    row = tl.program_id(0)
    k = tl.arange(0, BLOCK)
    is_number = k < size
    before = tl.load(residual + row * size + k, mask=is_number, other=0.0).to(tl.float32)
    wait_for_last(OVERLAPS, IS_EARLY)
    at, step = parts + row * size + k, num_rows * size
    first = tl.load(at, mask=is_number, other=0.0)
    first += tl.load(at + step, mask=is_number, other=0.0)
    second = tl.load(at + 2 * step, mask=is_number, other=0.0)
    second += tl.load(at + 3 * step, mask=is_number, other=0.0)
    y = (first + second).to(dtype).to(tl.float32)
    tl.store(out + row * size + k, (before + y).to(dtype), mask=is_number)
    tl.debug_barrier()  # read again: the order of a norm's sum depends on the layout of the load
    _normalise(out + row * size, weight, normed + row * size, size, eps, BLOCK)
