# mypy: ignore-errors
"""Triton kernels of the codec's convolutions; activations are [batch, time, channels].

Channels are last so that every filter tap reads whole cache lines and the outputs of a transposed
convolution are written in the order of time.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit(do_not_specialize=["length", "width"])
def join_kernel(
    x, tails, rows, frequency, inverse_gain, out,
    length, width, size, tail_stride,
    HAS_SNAKE: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Concatenate a slot's last `width` columns and x, with SnakeBeta applied if given."""
    batch = tl.program_id(2)
    t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)[:, None]
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    is_old, is_new = (t < width) & (c < size), (t >= width) & (t < width + length) & (c < size)
    value = tl.load(x + (batch * length + t - width) * size + c, mask=is_new, other=0.0)
    if HAS_SNAKE:
        factor = tl.load(frequency + c, mask=c < size, other=0.0)
        share = tl.load(inverse_gain + c, mask=c < size, other=0.0)
        wave = libdevice.sin(value * factor)
        value += share * (wave * wave)
    if out.dtype.element_ty == tl.float16:
        value = tl.minimum(tl.maximum(value, -65504.0), 65504.0)
    at = out + (batch * (width + length) + t) * size + c
    if width > 0:
        tail = tails + tl.load(rows + batch) * tail_stride
        past = tl.load(tail + t * size + c, mask=is_old, other=0.0)
        tl.store(at, past, mask=is_old)
    tl.store(at, value, mask=is_new)


@triton.jit(do_not_specialize=["num_rows", "length", "x_length", "dilation"])
def convolve_kernel(
    x, weight, bias, residual, out,
    num_rows, length, x_length, in_size, out_size, bias_size, dilation,
    TAPS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, IS_CLAMPED: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """out[m, n] = bias + sum over taps and channels of x[m + tap, c] * weight[tap, n, c]."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row, is_column = m < num_rows, n < out_size
    start = (m // length * x_length + m % length).to(tl.int64) * in_size
    num_blocks = tl.cdiv(in_size, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for i in range(TAPS * num_blocks):
        tap = i // num_blocks
        c = (i % num_blocks) * BLOCK_K + tl.arange(0, BLOCK_K)
        x_at = x + start[:, None] + tap * dilation * in_size + c[None, :]
        a = tl.load(x_at, mask=is_row[:, None] & (c < in_size)[None, :], other=0.0)
        w_at = weight + (tap * out_size + n)[:, None] * in_size + c[None, :]
        w = tl.load(w_at, mask=is_column[:, None] & (c < in_size)[None, :], other=0.0)
        acc = tl.dot(a.to(w.dtype), tl.trans(w), acc, input_precision=PRECISION)
    acc += tl.load(bias + n % bias_size, mask=is_column, other=0.0)[None, :]
    at = m[:, None].to(tl.int64) * out_size + n[None, :]
    mask = is_row[:, None] & is_column[None, :]
    if HAS_RESIDUAL:
        acc += tl.load(residual + at, mask=mask, other=0.0)
    if IS_CLAMPED:
        acc = tl.minimum(tl.maximum(acc, -1.0), 1.0)
    tl.store(out + at, acc, mask=mask)
