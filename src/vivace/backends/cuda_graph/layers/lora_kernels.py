# mypy: ignore-errors
"""Triton kernels of adapters that are chosen per row (model/lora.py).

A program computes numbers of one row, in an order of sums that does not depend on the other rows.
Rows without an adapter keep the bits of the product.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vivace.backends.cuda_graph.layers.product_kernels import silu, wait_for_last


@triton.jit
def shrink_kernel(
    x, numbers, a, out,
    x_stride, k_size, num_ranks,  # of all parts
    BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """out[m, r] = sum over k of a[adapter of m, r, k] * x[m, k], in float32."""
    wait_for_last(OVERLAPS)
    row = tl.program_id(0)
    number = tl.load(numbers + row)
    if number > 0:
        r = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
        k = tl.arange(0, BLOCK_K)
        a_rows = a + ((number - 1) * num_ranks + r).to(tl.int64) * k_size
        acc = tl.zeros((BLOCK_R, BLOCK_K), tl.float32)
        for start in range(0, k_size, BLOCK_K):
            is_k = start + k < k_size
            value = tl.load(x + row * x_stride + start + k, mask=is_k, other=0.0)
            mask = (r < num_ranks)[:, None] & is_k[None, :]
            factor = tl.load(a_rows[:, None] + (start + k)[None, :], mask=mask, other=0.0)
            acc += factor.to(tl.float32) * value.to(tl.float32)[None, :]
        tl.store(out + row * num_ranks + r, tl.sum(acc, 1), mask=r < num_ranks)


@triton.jit
def expand_kernel(
    inner, numbers, b, starts, y, out,
    n_size, num_ranks, rank,  # ranks of all parts and of one
    BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """out[m, n] = y[m, n] + sum over r of b[adapter of m, n, r] * inner[m, starts[n] + r]."""
    wait_for_last(OVERLAPS)
    row = tl.program_id(0)
    number = tl.load(numbers + row)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    at = row.to(tl.int64) * n_size + n
    total = tl.load(y + at, mask=n < n_size, other=0.0).to(tl.float32)
    if number > 0:
        r = tl.arange(0, BLOCK_R)
        mask = (n < n_size)[:, None] & (r < rank)[None, :]
        first = row * num_ranks + tl.load(starts + n, mask=n < n_size, other=0)
        value = tl.load(inner + first[:, None] + r[None, :], mask=mask, other=0.0)
        b_rows = b + ((number - 1) * n_size + n).to(tl.int64) * rank
        factor = tl.load(b_rows[:, None] + r[None, :], mask=mask, other=0.0)
        total += tl.sum(factor.to(tl.float32) * value, 1)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=n < n_size)


@triton.jit
def gate_kernel(y, out, n_size, BLOCK_N: tl.constexpr, OVERLAPS: tl.constexpr):
    """silu(gate) * up of rows [gate, up], rounded as in `linear_kernel`."""
    wait_for_last(OVERLAPS)
    dtype: tl.constexpr = y.dtype.element_ty
    row = tl.program_id(0)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mine = y + row.to(tl.int64) * 2 * n_size + n
    gate = silu(tl.load(mine, mask=n < n_size, other=0.0), dtype)
    up = tl.load(mine + n_size, mask=n < n_size, other=0.0)
    value = (gate.to(tl.float32) * up.to(tl.float32)).to(dtype)
    tl.store(out + row.to(tl.int64) * n_size + n, value, mask=n < n_size)
