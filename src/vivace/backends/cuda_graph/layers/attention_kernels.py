# mypy: ignore-errors
"""Triton kernels of attention, with norm and RoPE of the new heads and the KV cache update.

Keys are processed in chunks counted from a slot's first key, so a row's result depends neither on
other slots nor on the other rows of its pass. A chunk is one page of
the KV cache, [pages, kv_heads, CHUNK, D]; `pages` has a slot's page of each chunk.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vivace.backends.cuda_graph.layers.product_kernels import scaled, wait_for_last


@triton.jit
def _rotated(head, mask, weight, cos, sin, position, eps, D: tl.constexpr, dtype: tl.constexpr):
    """RMSNorm and RoPE of heads [R, D]; `head` points to the first number of each row."""
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


@triton.jit(do_not_specialize=["layer"])
def attend_slots_kernel(
    qkv, keys, values, pages, q_weight, k_weight, cos, sin,
    slots, positions, num_keys, out, part_max, part_sum,
    pages_stride, page_stride, head_stride, eps, softmax_scale,
    watch, watched_scores, score_stride, layer,
    NUM_KV: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    CHUNK: tl.constexpr,
    SPAN: tl.constexpr,  # chunks of one block
    NUM_SPANS: tl.constexpr,  # 1: `out` is the result, else float32 partial results
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Attention of one new token per row to a span of its slot's keys, for one KV head.

    The block of the last span stores the new token. The scores of the watched head are stored, at
    the slot's positions.
    """
    dtype: tl.constexpr = qkv.dtype.element_ty
    row, head, span = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    count = tl.load(num_keys + row).to(tl.int32)
    position = tl.load(positions + row).to(tl.int32)
    slot = tl.load(slots + row)
    slot_pages = pages + slot * pages_stride
    wait_for_last(OVERLAPS)  # an earlier kernel wrote the numbers above
    if span * SPAN * CHUNK >= count:
        return
    d = tl.arange(0, D)[None, :]
    r = tl.arange(0, 16)  # query heads of this key head
    start = qkv + row * (GROUP + 2) * NUM_KV * D
    q_head = start + (head * GROUP + r) * D
    q = _rotated(q_head, r < GROUP, q_weight, cos, sin, position + r * 0, eps, D, dtype)
    is_watched = (tl.load(watch) == layer) & (tl.load(watch + 1) == head)
    is_kept = (r == tl.load(watch + 2)) & is_watched
    kept = watched_scores + slot * score_stride
    top = tl.full((16,), -float("inf"), tl.float32)
    total = tl.zeros((16,), tl.float32)
    acc = tl.zeros((16, D), tl.float32)
    if (span + 1) * SPAN * CHUNK >= count:
        one = tl.arange(0, 1)
        k_head = start + (GROUP * NUM_KV + head + one) * D
        new_k = _rotated(k_head, one == 0, k_weight, cos, sin, position + one, eps, D, dtype)
        new_v = tl.load(start + ((GROUP + 1) * NUM_KV + head) * D + d)
        page = tl.load(slot_pages + position // CHUNK).to(tl.int64)
        at = page * page_stride + head * head_stride + (position % CHUNK) * D + d
        tl.store(keys + at, new_k)
        tl.store(values + at, new_v)
    tl.debug_barrier()  # the new token is read back below
    i = tl.arange(0, CHUNK)
    for chunk in range(span * SPAN, tl.minimum((span + 1) * SPAN, tl.cdiv(count, CHUNK))):
        t = chunk * CHUNK + i
        is_key = t < count
        base = tl.load(slot_pages + chunk).to(tl.int64) * page_stride + head * head_stride
        k = tl.load(keys + base + i[:, None] * D + d, mask=is_key[:, None], other=0.0)
        v = tl.load(values + base + i[:, None] * D + d, mask=is_key[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * softmax_scale
        scores = tl.where(is_key[None, :], scores, -float("inf"))
        tl.store(kept + t[None, :] + (r * 0)[:, None], scores, is_kept[:, None] & is_key[None, :])
        peak = tl.maximum(top, tl.max(scores, 1))
        share = tl.exp(top - peak)
        p = tl.exp(scores - peak[:, None])
        total = total * share + tl.sum(p, 1)
        acc = acc * share[:, None] + tl.dot(p.to(dtype), v, input_precision="ieee")
        top = peak
    is_query = r < GROUP
    part = ((row * NUM_KV + head) * GROUP + r) * NUM_SPANS + span
    at = out + part[:, None].to(tl.int64) * D + d
    if NUM_SPANS == 1:
        tl.store(at, (acc / total[:, None]).to(dtype), mask=is_query[:, None])
    else:
        tl.store(at, acc, mask=is_query[:, None])
        tl.store(part_max + part, top, mask=is_query)
        tl.store(part_sum + part, total, mask=is_query)


@triton.jit
def merge_spans_kernel(
    part_out, part_max, part_sum, num_keys, out,
    D: tl.constexpr, KEYS: tl.constexpr, NUM_SPANS: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Merge the spans of one row and query head, sixteen at a time; a span has `KEYS` keys."""
    wait_for_last(OVERLAPS)
    at = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    num_spans = tl.cdiv(tl.load(num_keys + tl.program_id(0)).to(tl.int32), KEYS)
    d = tl.arange(0, D)
    top = -float("inf")
    for first in range(0, num_spans, 16):
        i = first + tl.arange(0, 16)
        peaks = tl.load(part_max + at * NUM_SPANS + i, mask=i < num_spans, other=-float("inf"))
        top = tl.maximum(top, tl.max(peaks, 0))
    total = 0.0
    acc = tl.zeros((D,), tl.float32)
    for first in range(0, num_spans, 16):
        i = first + tl.arange(0, 16)
        is_span = i < num_spans
        part = at * NUM_SPANS + i
        peaks = tl.load(part_max + part, mask=is_span, other=-float("inf"))
        sums = tl.load(part_sum + part, mask=is_span, other=0.0)
        mixed_at = part_out + part[:, None].to(tl.int64) * D + d[None, :]
        mixed = tl.load(mixed_at, mask=is_span[:, None], other=0.0)
        share = tl.exp(peaks - top)
        total += tl.sum(share * sums, 0)
        acc += tl.sum(share[:, None] * mixed, 0)
    tl.store(out + at * D + d, (acc / total).to(out.dtype.element_ty))


@triton.jit
def store_keys_kernel(
    qkv, keys, values, pages, k_weight, cos, sin, slots, positions,
    pages_stride, page_stride, head_stride, eps,
    NUM_KV: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Store one row's keys, after norm and RoPE, and its values in its slot."""
    wait_for_last(OVERLAPS)
    dtype: tl.constexpr = qkv.dtype.element_ty
    row = tl.program_id(0)
    position = tl.load(positions + row).to(tl.int32)
    head = tl.arange(0, BLOCK)
    is_head = head < NUM_KV
    start = qkv + row * (GROUP + 2) * NUM_KV * D
    k_head = start + (GROUP * NUM_KV + head) * D
    k = _rotated(k_head, is_head, k_weight, cos, sin, position + head * 0, eps, D, dtype)
    d = tl.arange(0, D)[None, :]
    v_at = start + ((GROUP + 1) * NUM_KV + head)[:, None] * D + d
    v = tl.load(v_at, mask=is_head[:, None], other=0.0)
    page = tl.load(pages + tl.load(slots + row) * pages_stride + position // CHUNK).to(tl.int64)
    at = page * page_stride + head[:, None] * head_stride + (position % CHUNK) * D + d
    tl.store(keys + at, k, mask=is_head[:, None])
    tl.store(values + at, v, mask=is_head[:, None])


@triton.jit(do_not_specialize=["num_positions"])
def attend_prompts_kernel(
    qkv, keys, values, pages, q_weight, cos, sin, slots, positions, out,
    pages_stride, page_stride, head_stride, num_positions, eps, softmax_scale,
    NUM_KV: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    """Causal attention of a few rows of one slot to its stored keys, for one KV head.

    A chunk beyond a row's position leaves its result bit-identical, so the result does not depend
    on which rows share a block. Padding attends to the slot's first key.
    """
    wait_for_last(OVERLAPS)
    dtype: tl.constexpr = qkv.dtype.element_ty
    first, head = tl.program_id(0) * ROWS, tl.program_id(1)
    slot_pages = pages + tl.load(slots + first) * pages_stride
    r = tl.arange(0, BLOCK)  # row and query head
    row = first + r // GROUP
    is_query = r < ROWS * GROUP
    position = tl.load(positions + row, mask=is_query, other=num_positions).to(tl.int32)
    count = tl.where(position < num_positions, position + 1, 1)
    num_keys = tl.max(count, 0)
    query = (row * (GROUP + 2) * NUM_KV + head * GROUP + r % GROUP) * D
    q = _rotated(qkv + query, is_query, q_weight, cos, sin, position, eps, D, dtype)
    d = tl.arange(0, D)[None, :]
    top = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    acc = tl.zeros((BLOCK, D), tl.float32)
    i = tl.arange(0, CHUNK)
    for begin in range(0, num_keys, CHUNK):
        t = begin + i
        page = tl.load(slot_pages + begin // CHUNK).to(tl.int64)
        at = page * page_stride + head * head_stride + i[:, None] * D + d
        k = tl.load(keys + at, mask=(t < num_keys)[:, None], other=0.0)
        v = tl.load(values + at, mask=(t < num_keys)[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * softmax_scale
        scores = tl.where(t[None, :] < count[:, None], scores, -float("inf"))
        peak = tl.maximum(top, tl.max(scores, 1))
        p = tl.exp(scores - peak[:, None])
        share = tl.exp(top - peak)
        mixed = tl.dot(p.to(dtype), v, input_precision="ieee")
        is_reached = begin < count
        total = tl.where(is_reached, total * share + tl.sum(p, 1), total)
        acc = tl.where(is_reached[:, None], acc * share[:, None] + mixed, acc)
        top = peak
    out_at = ((row * NUM_KV + head) * GROUP + r % GROUP) * D
    y = (acc / total[:, None]).to(dtype)
    tl.store(out + out_at[:, None] + d, y, mask=is_query[:, None])


@triton.jit
def _repeated(x, ROWS: tl.constexpr):
    """[R, D] to [ROWS, D], row r being row r % R of x: a tensor core needs 16 rows."""
    R: tl.constexpr = x.shape[0]
    D: tl.constexpr = x.shape[1]
    return tl.reshape(tl.broadcast_to(x[None, :, :], (ROWS // R, R, D)), (ROWS, D))


@triton.jit(do_not_specialize=["first"])
def attend_frame_kernel(
    qkv, keys, values, q_weight, k_weight, cos, sin, out, first, eps, softmax_scale,
    NUM_KV: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    NUM_NEW: tl.constexpr, NUM_POSITIONS: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr,  # queries of one block, rounded up to a power of two
    OVERLAPS: tl.constexpr,
):  # fmt: skip
    """The predictor's attention: `NUM_NEW` new tokens per slot from position `first` on."""
    dtype: tl.constexpr = qkv.dtype.element_ty
    slot, head = tl.program_id(0), tl.program_id(1)
    width: tl.constexpr = (GROUP + 2) * NUM_KV * D
    start = qkv + slot * NUM_NEW * width
    d = tl.arange(0, D)[None, :]
    t = tl.arange(0, BLOCK)
    first_at = (slot * NUM_KV + head) * NUM_POSITIONS * D
    at = first_at + t[:, None] * D + d
    k = tl.load(keys + at, mask=(t < first)[:, None], other=0.0)
    v = tl.load(values + at, mask=(t < first)[:, None], other=0.0)
    wait_for_last(OVERLAPS)  # an earlier kernel stored the keys and values above
    r = tl.arange(0, ROWS)  # token and query head
    token = r // GROUP
    q_at = start + token * width + (head * GROUP + r % GROUP) * D
    is_query = r < NUM_NEW * GROUP
    q = _rotated(q_at, is_query, q_weight, cos, sin, first + token, eps, D, dtype)
    one = tl.arange(0, 1)
    for i in tl.static_range(NUM_NEW):
        k_head = start + i * width + (GROUP * NUM_KV + head + one) * D
        new_k = _rotated(k_head, one == 0, k_weight, cos, sin, first + i + one, eps, D, dtype)
        new_v = tl.load(start + i * width + ((GROUP + 1) * NUM_KV + head) * D + d)
        tl.store(keys + first_at + (first + i) * D + d, new_k)
        tl.store(values + first_at + (first + i) * D + d, new_v)
        is_new = (t == first + i)[:, None]
        k = tl.where(is_new, new_k, k)
        v = tl.where(is_new, new_v, v)
    r = tl.arange(0, 16)  # the queries, repeated
    token = r % ROWS // GROUP
    scores = tl.dot(_repeated(q, 16), tl.trans(k), input_precision="ieee") * softmax_scale
    scores = tl.where(t[None, :] <= (first + token)[:, None], scores, -float("inf"))
    p = tl.exp(scores - tl.max(scores, 1)[:, None])
    total = tl.sum(p, 1)
    mixed = tl.dot(p.to(dtype), v, input_precision="ieee") / total[:, None]
    row = slot * NUM_NEW + token
    out_at = ((row * NUM_KV + head) * GROUP + r % ROWS % GROUP) * D
    tl.store(out + out_at[:, None] + d, mixed.to(dtype), mask=(r < NUM_NEW * GROUP)[:, None])
