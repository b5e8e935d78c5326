# mypy: ignore-errors
"""Triton kernels of attention: norm and rope of the new heads, their keys kept, then the mix.

Keys are taken in chunks counted from a slot's first one, so what a row gets does not depend on how
long its neighbours are.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vivace.backends.cuda_graph.product_kernels import scaled, wait_for_last


@triton.jit
def _rotated(head, mask, weight, cos, sin, position, eps, D: tl.constexpr, dtype: tl.constexpr):
    """Normed and turned heads [R, D]: `head` points at each row's first number, `position` [R]."""
    d = tl.arange(0, D)
    other = (d + D // 2) % D
    x = tl.load(head[:, None] + d[None, :], mask=mask[:, None], other=0.0)
    y = tl.load(head[:, None] + other[None, :], mask=mask[:, None], other=0.0)
    wide = x.to(tl.float32)
    scale = tl.math.rsqrt(tl.sum(wide * wide, 1) / D + eps)[:, None]
    x = scaled(x, scale, tl.load(weight + d)[None, :], dtype).to(tl.float32)
    y = scaled(y, scale, tl.load(weight + other)[None, :], dtype).to(tl.float32)
    at = position[:, None] * D + d[None, :]
    c = tl.load(cos + at, mask=mask[:, None], other=0.0).to(tl.float32)
    s = tl.load(sin + at, mask=mask[:, None], other=0.0).to(tl.float32)
    return ((x * c).to(dtype).to(tl.float32) + (y * s).to(dtype).to(tl.float32)).to(dtype)


@triton.jit
def attend_slots_kernel(
    qkv, keys, values, q_weight, k_weight, cos, sin,
    slots, positions, num_keys, part_out, part_max, part_sum,
    slot_stride, head_stride, eps, softmax_scale,
    NUM_KV: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    CHUNK: tl.constexpr, NUM_CHUNKS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """One new token per row against one chunk of its slot's keys, of one key head."""
    dtype: tl.constexpr = qkv.dtype.element_ty
    row, head, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    wait_for_last(OVERLAPS)
    count = tl.load(num_keys + row).to(tl.int32)
    begin = chunk * CHUNK
    if begin >= count:
        return
    position = tl.load(positions + row).to(tl.int32)
    base = tl.load(slots + row) * slot_stride + head.to(tl.int64) * head_stride
    start = qkv + row * (GROUP + 2) * NUM_KV * D
    d = tl.arange(0, D)[None, :]
    t = begin + tl.arange(0, CHUNK)
    is_old, is_new = (t < count) & (t != position), t == position
    k = tl.load(keys + base + t[:, None] * D + d, mask=is_old[:, None], other=0.0)
    v = tl.load(values + base + t[:, None] * D + d, mask=is_old[:, None], other=0.0)
    one = tl.arange(0, 1)
    k_head = start + (GROUP * NUM_KV + head + one) * D
    new_k = _rotated(k_head, one == 0, k_weight, cos, sin, position + one, eps, D, dtype)
    new_v = tl.load(start + ((GROUP + 1) * NUM_KV + head) * D + d)
    if count <= begin + CHUNK:  # the chunk of the new token keeps it
        at = base + position.to(tl.int64) * D + d
        tl.store(keys + at, new_k)
        tl.store(values + at, new_v)
    r = tl.arange(0, 16)  # query heads of this key head
    q_head = start + (head * GROUP + r) * D
    q = _rotated(q_head, r < GROUP, q_weight, cos, sin, position + r * 0, eps, D, dtype)
    k = tl.where(is_new[:, None], new_k, k)
    v = tl.where(is_new[:, None], new_v, v)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * softmax_scale
    scores = tl.where((t < count)[None, :], scores, -float("inf"))
    peak = tl.max(scores, 1)
    p = tl.exp(scores - peak[:, None])
    mixed = tl.dot(p.to(dtype), v, input_precision="ieee")
    part = (row * NUM_KV * GROUP + head * GROUP + r) * NUM_CHUNKS + chunk
    tl.store(part_out + part[:, None].to(tl.int64) * D + d, mixed, mask=(r < GROUP)[:, None])
    tl.store(part_max + part, peak, mask=r < GROUP)
    tl.store(part_sum + part, tl.sum(p, 1), mask=r < GROUP)


@triton.jit
def merge_chunks_kernel(
    part_out, part_max, part_sum, num_keys, out,
    D: tl.constexpr, CHUNK: tl.constexpr, NUM_CHUNKS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """The chunks of one row and query head, sixteen at a time whatever the span."""
    wait_for_last(OVERLAPS)
    at = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    num_chunks = tl.cdiv(tl.load(num_keys + tl.program_id(0)).to(tl.int32), CHUNK)
    d = tl.arange(0, D)
    top = -float("inf")
    for first in range(0, num_chunks, 16):
        i = first + tl.arange(0, 16)
        peaks = tl.load(part_max + at * NUM_CHUNKS + i, mask=i < num_chunks, other=-float("inf"))
        top = tl.maximum(top, tl.max(peaks, 0))
    total = 0.0
    acc = tl.zeros((D,), tl.float32)
    for first in range(0, num_chunks, 16):
        i = first + tl.arange(0, 16)
        is_chunk = i < num_chunks
        part = at * NUM_CHUNKS + i
        peaks = tl.load(part_max + part, mask=is_chunk, other=-float("inf"))
        sums = tl.load(part_sum + part, mask=is_chunk, other=0.0)
        mixed_at = part_out + part[:, None].to(tl.int64) * D + d[None, :]
        mixed = tl.load(mixed_at, mask=is_chunk[:, None], other=0.0)
        share = tl.exp(peaks - top)
        total += tl.sum(share * sums, 0)
        acc += tl.sum(share[:, None] * mixed, 0)
    tl.store(out + at * D + d, (acc / total).to(out.dtype.element_ty))


@triton.jit(do_not_specialize=["first"])
def attend_frame_kernel(
    qkv, keys, values, q_weight, k_weight, cos, sin, out, first, eps, softmax_scale,
    NUM_KV: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    NUM_NEW: tl.constexpr, NUM_POSITIONS: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """The predictor's attention: `NUM_NEW` new tokens per slot from position `first` on."""
    wait_for_last(OVERLAPS)
    dtype: tl.constexpr = qkv.dtype.element_ty
    slot, head = tl.program_id(0), tl.program_id(1)
    width: tl.constexpr = (GROUP + 2) * NUM_KV * D
    start = qkv + slot * NUM_NEW * width
    d = tl.arange(0, D)
    t = tl.arange(0, BLOCK)
    is_old, is_new = t < first, (t >= first) & (t < first + NUM_NEW)
    at = (((slot * NUM_KV + head) * NUM_POSITIONS + t) * D)[:, None] + d[None, :]
    new = start + (t - first) * width
    new_k_at = new + (GROUP * NUM_KV + head) * D
    new_k = _rotated(new_k_at, is_new, k_weight, cos, sin, t, eps, D, dtype)
    new_v_at = (new + ((GROUP + 1) * NUM_KV + head) * D)[:, None] + d[None, :]
    new_v = tl.load(new_v_at, mask=is_new[:, None], other=0.0)
    tl.store(keys + at, new_k, mask=is_new[:, None])
    tl.store(values + at, new_v, mask=is_new[:, None])
    k = tl.load(keys + at, mask=is_old[:, None], other=0.0)
    v = tl.load(values + at, mask=is_old[:, None], other=0.0)
    k = tl.where(is_new[:, None], new_k, k)
    v = tl.where(is_new[:, None], new_v, v)
    r = tl.arange(0, 16)  # token and query head
    token = r // GROUP
    is_query = r < NUM_NEW * GROUP
    q_at = start + token * width + (head * GROUP + r % GROUP) * D
    q = _rotated(q_at, is_query, q_weight, cos, sin, first + token, eps, D, dtype)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * softmax_scale
    scores = tl.where(t[None, :] <= (first + token)[:, None], scores, -float("inf"))
    p = tl.exp(scores - tl.max(scores, 1)[:, None])
    total = tl.sum(p, 1)
    mixed = tl.dot(p.to(dtype), v, input_precision="ieee") / total[:, None]
    row = slot * NUM_NEW + token
    out_at = ((row * NUM_KV + head) * GROUP + r % GROUP) * D
    tl.store(out + out_at[:, None] + d[None, :], mixed.to(dtype), mask=is_query[:, None])
