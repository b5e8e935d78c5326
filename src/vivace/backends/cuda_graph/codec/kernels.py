# mypy: ignore-errors
"""Triton kernels of the codec's products and convolutions; activations are [batch, time, channels].

Channels are last so that every filter tap reads whole cache lines and the outputs of a transposed
convolution are written in temporal order. A causal layer reads past inputs from its slot's history,
which `keep_kernel` updates afterwards.
"""

from __future__ import annotations

import triton
import triton.language as tl

PLAIN, SNAKE, GELU = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
TO_INTEGER = tl.constexpr(12582912.0)  # 1.5 * 2**23: adding it rounds a float32 to an integer


@triton.jit
def sum_codes_kernel(
    codes, tables, out, num_books, num_first, num_codes, width,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Sum the semantic and the acoustic codebooks' vectors, side by side: [2 * width]."""
    frame = tl.program_id(0).to(tl.int64)
    is_rest = tl.program_id(1)
    c = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for book in range(is_rest * num_first, num_first + is_rest * (num_books - num_first)):
        code = tl.load(codes + frame * num_books + book)
        total += tl.load(tables + (book * num_codes + code) * width + c, mask=c < width, other=0.0)
    tl.store(out + (frame * 2 + is_rest) * width + c, total, mask=c < width)


@triton.jit
def clamped(x, dtype: tl.constexpr):
    """Clamp to the range of the dtype."""
    if dtype == tl.float16:
        x = tl.minimum(tl.maximum(x, -65504.0), 65504.0)
    return x


@triton.jit
def rounded(x, PRECISION: tl.constexpr):
    """Round to the nearest TF32 number; a tensor core would truncate."""
    if PRECISION == "tf32":
        bits = (x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
        x = bits.to(tl.float32, bitcast=True)
    return x


@triton.jit
def _snake(x, n, frequency, inverse_gain):
    """The snake activation of x [M, N], whose columns are the channels `n`.

    `frequency` is in half turns. Every sum is an explicit FMA, so that operands.cuh computes the
    same bits. The polynomial is sin(pi * r) for |r| <= 0.5; its sign does not matter.
    """
    turns = tl.load(frequency + n)[None, :]
    r = tl.fma(x, turns, TO_INTEGER - tl.fma(x, turns, TO_INTEGER))
    square = r * r
    p = tl.fma(square, 0.07722016, -0.59804517)
    p = tl.fma(p, square, 2.5500314)
    p = tl.fma(p, square, -5.167707)
    p = tl.fma(p, square, 3.1415925)
    wave = p * r
    return tl.fma(tl.load(inverse_gain + n)[None, :], wave * wave, x)


@triton.jit
def _input_rows(x, past, at, reach, size):
    """Pointers to the inputs at time `at`; those before the chunk are in the slot's history."""
    return tl.where(at >= 0, x + at * size, past + (at + reach) * size)


@triton.jit(do_not_specialize=["num_rows", "length", "dilation", "reach"])
def product_kernel(
    x, history, slots, norm, weight, bias, scale, residual, out, active, frequency, inverse_gain,
    num_rows, length, in_size, out_size, bias_size, dilation, reach, history_stride, eps,
    TAPS: tl.constexpr, IS_GATED: tl.constexpr, ACTIVATION: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    IS_ROWS_FIRST: tl.constexpr,
):  # fmt: skip
    """out[m, n] = bias + sum over taps and channels of x[m - reach + tap, c] * weight[tap, n, c].

    One tap is a linear layer. Pointers may be None. `norm` is the weight of an RMSNorm before the
    product. `scale` is per column. `residual` is added to the scaled sum. `active` is `out` after
    the next layer's activation, in the type of that layer's input.

    Blocks that run at the same time share columns if IS_ROWS_FIRST, else rows.
    """
    inner, outer = tl.program_id(0), tl.program_id(1)
    row_block = inner if IS_ROWS_FIRST else outer
    column_block = outer if IS_ROWS_FIRST else inner
    m = row_block * BLOCK_M + tl.arange(0, BLOCK_M)
    n = column_block * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row, is_column = m < num_rows, n < out_size
    batch, t = m // length, m % length
    first = x + (m - t).to(tl.int64) * in_size
    if TAPS > 1:
        slot = tl.load(slots + batch, mask=is_row, other=0)
        past = history + slot * history_stride
    num_blocks = tl.cdiv(in_size, BLOCK_K)
    within = tl.arange(0, BLOCK_K)[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if IS_GATED:
        gated = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if norm is not None:
        squares = tl.zeros((BLOCK_M, 16), tl.float32)
        ones = tl.full((BLOCK_K, 16), 1.0, tl.float32)
    for i in range(TAPS * num_blocks):
        tap = i // num_blocks
        c = (i % num_blocks) * BLOCK_K + within
        row = first + t * in_size
        if TAPS > 1:
            row = _input_rows(first, past, t + tap * dilation - reach, reach, in_size)
        w_row = weight + (tap * out_size + n).to(tl.int64) * in_size
        a = tl.load(row[:, None] + c, mask=is_row[:, None] & (c < in_size), other=0.0)
        w_mask = is_column[:, None] & (c < in_size)
        w = tl.load(w_row[:, None] + c, mask=w_mask, other=0.0)
        if norm is not None:
            # A tensor core adds in the same order for every tile.
            square = rounded(a * a, PRECISION)
            squares = tl.dot(square, ones, squares, input_precision=PRECISION)
            a *= tl.load(norm + c, mask=c < in_size, other=0.0)
        if a.dtype == tl.float32:
            a = rounded(a, PRECISION)
        acc = tl.dot(a, tl.trans(w), acc, input_precision=PRECISION)
        if IS_GATED:
            up_row = w_row + out_size.to(tl.int64) * in_size
            up = tl.load(up_row[:, None] + c, mask=w_mask, other=0.0)
            gated = tl.dot(a, tl.trans(up), gated, input_precision=PRECISION)
    if norm is not None:
        inverse = tl.rsqrt(tl.max(squares, axis=1) / in_size + eps)  # all columns are equal
        acc *= inverse[:, None]
        if IS_GATED:
            gated *= inverse[:, None]
    if IS_GATED:
        acc = acc / (1.0 + tl.exp(-acc)) * gated
    if bias is not None:
        acc += tl.load(bias + n % bias_size, mask=is_column, other=0.0)[None, :]
    at_out = m[:, None].to(tl.int64) * out_size + n[None, :]
    mask = is_row[:, None] & is_column[None, :]
    if scale is not None:
        acc *= tl.load(scale + n, mask=is_column, other=0.0)[None, :]
    if residual is not None:
        acc += tl.load(residual + at_out, mask=mask, other=0.0)
    if out is not None:
        tl.store(out + at_out, clamped(acc, out.dtype.element_ty), mask=mask)
    if active is not None:
        if ACTIVATION == SNAKE:
            acc = _snake(acc, n % bias_size, frequency, inverse_gain)
        if ACTIVATION == GELU:
            acc = 0.5 * acc * (1.0 + tl.erf(acc * 0.7071067811865476))
        tl.store(active + at_out, clamped(acc, active.dtype.element_ty), mask=mask)


@triton.jit
def _store_unit(
    acc, m, n, is_row, bias, residual, out, active, frequency, inverse_gain, SIZE: tl.constexpr
):
    """Add bias and residual, and store the sum before and after the next activation."""
    at = m[:, None].to(tl.int64) * SIZE + n[None, :]
    mask = is_row[:, None]
    acc += tl.load(bias + n)[None, :]
    acc += tl.load(residual + at, mask=mask, other=0.0)
    if out is not None:
        tl.store(out + at, clamped(acc, out.dtype.element_ty), mask=mask)
    acc = _snake(acc, n, frequency, inverse_gain)
    tl.store(active + at, clamped(acc, active.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_rows", "length", "dilation", "reach"])
def unit_kernel(
    x, history, slots, weight, bias, frequency, inverse_gain,
    second_weight, second_bias, residual, out, active, next_frequency, next_inverse_gain,
    num_rows, length, dilation, reach, history_stride,
    SIZE: tl.constexpr, HEAD: tl.constexpr, TAIL: tl.constexpr,  # SIZE is their sum; TAIL may be 0
    TAPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A residual unit: convolution, snake, linear layer, residual, next snake.

    Equal to two calls of product_kernel to the bit, but a block has all columns of its rows, so
    that the hidden activations stay on the chip.
    """
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    is_row = m < num_rows
    batch, t = m // length, m % length
    first = x + (m - t).to(tl.int64) * SIZE
    past = history + tl.load(slots + batch, mask=is_row, other=0) * history_stride
    n = tl.arange(0, HEAD)
    within = tl.arange(0, BLOCK_K)[None, :]
    acc = tl.zeros((BLOCK_M, HEAD), tl.float32)
    if TAIL:
        n_tail = HEAD + tl.arange(0, TAIL)
        acc_tail = tl.zeros((BLOCK_M, TAIL), tl.float32)
    for i in range(TAPS * (SIZE // BLOCK_K)):
        tap = i // (SIZE // BLOCK_K)
        c = (i % (SIZE // BLOCK_K)) * BLOCK_K + within
        row = _input_rows(first, past, t + tap * dilation - reach, reach, SIZE)
        a = tl.load(row[:, None] + c, mask=is_row[:, None], other=0.0)
        tap_weight = weight + tap * SIZE * SIZE
        w = tl.load(tap_weight + n[:, None] * SIZE + c)
        acc = tl.dot(a, tl.trans(w), acc)
        if TAIL:
            w_tail = tl.load(tap_weight + n_tail[:, None] * SIZE + c)
            acc_tail = tl.dot(a, tl.trans(w_tail), acc_tail)
    dtype: tl.constexpr = x.dtype.element_ty
    acc += tl.load(bias + n)[None, :]
    hidden = clamped(_snake(acc, n, frequency, inverse_gain), dtype).to(dtype)
    y = tl.dot(hidden, tl.trans(tl.load(second_weight + n[:, None] * SIZE + n[None, :])))
    if TAIL:
        acc_tail += tl.load(bias + n_tail)[None, :]
        hidden_tail = clamped(_snake(acc_tail, n_tail, frequency, inverse_gain), dtype).to(dtype)
        tail_rows = second_weight + n_tail[:, None] * SIZE
        y = tl.dot(
            hidden_tail, tl.trans(tl.load(second_weight + n[:, None] * SIZE + n_tail[None, :])), y
        )
        y_tail = tl.dot(hidden, tl.trans(tl.load(tail_rows + n[None, :])))
        y_tail = tl.dot(hidden_tail, tl.trans(tl.load(tail_rows + n_tail[None, :])), y_tail)
        _store_unit(
            y_tail, m, n_tail, is_row, second_bias, residual, out, active,
            next_frequency, next_inverse_gain, SIZE,
        )  # fmt: skip
    _store_unit(
        y, m, n, is_row, second_bias, residual, out, active,
        next_frequency, next_inverse_gain, SIZE,
    )  # fmt: skip


@triton.jit(do_not_specialize=["length"])
def waveform_kernel(
    x, history, slots, weight, bias, out, length, size, history_stride,
    TAPS: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A convolution to one channel, clamped to -1 to 1; weight [taps, 1, size].

    A product gives the sum over channels of every input row for each tap, as 16 columns. The tap's
    sums are then added along the diagonal, so that inputs are read once.
    """
    batch = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * (BLOCK_M - TAPS + 1)
    row, tap = tl.arange(0, BLOCK_M), tl.arange(0, 16)
    at = first + row - (TAPS - 1)
    past = history + tl.load(slots + batch) * history_stride
    rows = _input_rows(x + batch * length * size, past, at, TAPS - 1, size)
    sums = tl.zeros((BLOCK_M, 16), tl.float32)
    for start in range(0, size, BLOCK_K):
        c = start + tl.arange(0, BLOCK_K)
        mask = (at < length)[:, None] & (c < size)[None, :]
        a = tl.load(rows[:, None] + c[None, :], mask=mask, other=0.0)
        w_mask = (tap < TAPS)[:, None] & (c < size)[None, :]
        w = tl.load(weight + tap[:, None] * size + c[None, :], mask=w_mask, other=0.0)
        sums = tl.dot(a, tl.trans(w), sums, input_precision=PRECISION)
    later = tl.minimum(row[:, None] + tap[None, :], BLOCK_M - 1)
    diagonal = tl.where((tap < TAPS)[None, :], tl.gather(sums, later, 0), 0.0)
    y = tl.sum(diagonal, axis=1) + tl.load(bias)
    t = first + row
    is_row = (row < BLOCK_M - TAPS + 1) & (t < length)
    tl.store(out + batch * length + t, tl.minimum(tl.maximum(y, -1.0), 1.0), mask=is_row)


@triton.jit
def clear_kernel(table, slots, size, BLOCK: tl.constexpr):
    """Set rows of table [slots, size] to 0."""
    row = tl.load(slots + tl.program_id(1)).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(table + row * size + column, tl.zeros((BLOCK,), tl.float32), mask=column < size)


@triton.jit(do_not_specialize=["length", "width"])
def keep_kernel(
    x, history, slots, length, width, size, history_stride,
    BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Make the last `width` columns of history and x the slot's new history."""
    batch = tl.program_id(1)
    t = tl.arange(0, BLOCK_T)[:, None]
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    mask = (t < width) & (c < size)
    past = history + tl.load(slots + batch) * history_stride
    at = t + length - width
    row = tl.where(
        at >= 0, x + (batch.to(tl.int64) * length + at) * size, past + (at + width) * size
    )
    value = tl.load(row + c, mask=mask, other=0.0)
    tl.debug_barrier()  # all threads must read before any thread writes
    tl.store(past + t * size + c, value, mask=mask)


@triton.jit(do_not_specialize=["length", "width"])
def join_kernel(
    joined, history, slots, length, width, size, history_stride,
    BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Store the slot's history before the new inputs, and the last `width` inputs as the history.

    joined: [batch, width + length, size].
    """
    batch = tl.program_id(1)
    t = tl.arange(0, BLOCK_T)[:, None]
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    mask = (t < width) & (c < size)
    past = history + tl.load(slots + batch) * history_stride
    first = joined + batch.to(tl.int64) * (width + length) * size
    old = tl.load(past + t * size + c, mask=mask, other=0.0)
    at = t + length
    row = tl.where(at < width, past + at * size, first + at * size)
    new = tl.load(row + c, mask=mask, other=0.0)
    tl.debug_barrier()  # all threads must read before any thread writes
    tl.store(first + t * size + c, old, mask=mask)
    tl.store(past + t * size + c, new, mask=mask)


@triton.jit(do_not_specialize=["length"])
def mix_kernel(
    x, history, slots, weight, bias, norm_weight, norm_bias, out,
    length, size, history_stride, eps,
    TAPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A depthwise convolution over time, then LayerNorm over channels; weight [taps, size]."""
    m = tl.program_id(0)
    batch, t = (m // length).to(tl.int64), m % length
    c = tl.arange(0, BLOCK)
    mask = c < size
    past = history + tl.load(slots + batch) * history_stride
    value = tl.load(bias + c, mask=mask, other=0.0)
    for tap in tl.static_range(TAPS):
        row = _input_rows(x + batch * length * size, past, t + tap - (TAPS - 1), TAPS - 1, size)
        factor = tl.load(weight + tap * size + c, mask=mask, other=0.0)
        value += tl.load(row + c, mask=mask, other=0.0) * factor
    mean = tl.sum(tl.where(mask, value, 0.0), axis=0) / size
    value = tl.where(mask, value - mean, 0.0)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / size + eps)
    value = value * scale * tl.load(norm_weight + c, mask=mask, other=0.0)
    value += tl.load(norm_bias + c, mask=mask, other=0.0)
    tl.store(out + m.to(tl.int64) * size + c, value, mask=mask)
