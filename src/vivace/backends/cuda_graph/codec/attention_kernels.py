# mypy: ignore-errors
"""Triton kernels of the attention in the codec's transformer, with RoPE and the slots' KV rings."""

from __future__ import annotations

import triton
import triton.language as tl

from vivace.backends.cuda_graph.codec.kernels import clamped


@triton.jit(do_not_specialize=["length"])
def rotations_kernel(
    slots, num_seen, frequencies, out, length,
    HALF: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Cosines and sines of the slots' next positions: [batch, length, 2, HALF]."""
    batch = tl.program_id(0)
    seen = tl.load(num_seen + tl.load(slots + batch))
    t, d = tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_D)
    angle = (seen + t).to(tl.float32)[:, None] * tl.load(frequencies + d, d < HALF, 0.0)[None, :]
    mask = (t < length)[:, None] & (d < HALF)[None, :]
    at = out + (batch * length + t).to(tl.int64)[:, None] * (2 * HALF) + d[None, :]
    tl.store(at, tl.cos(angle), mask=mask)
    tl.store(at + HALF, tl.sin(angle), mask=mask)


@triton.jit(do_not_specialize=["length"])
def attend_kernel(
    qkv, ring, slots, num_seen, rotations, out,
    length, slot_stride, softmax_scale,
    NUM_HEADS: tl.constexpr, NUM_KV: tl.constexpr, D: tl.constexpr, WINDOW: tl.constexpr,
    RING: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Rotate, store keys and values in the slot's ring, attend to its last WINDOW frames.

    A ring is [2, NUM_KV, RING, D], keys before values; BLOCK_D is half of D or more. Products have
    the ring's type, whose precision in float16 is that of TF32.
    """
    batch, head = tl.program_id(0), tl.program_id(1)
    kv_head = head // (NUM_HEADS // NUM_KV)
    slot = tl.load(slots + batch)
    seen = tl.load(num_seen + slot)
    half = D // 2
    t = tl.arange(0, BLOCK_T)
    d = tl.arange(0, BLOCK_D)
    is_new = (t < length)[:, None] & (d < half)[None, :]
    row = qkv + (batch * length + t).to(tl.int64)[:, None] * ((NUM_HEADS + 2 * NUM_KV) * D)
    turn = rotations + (batch * length + t).to(tl.int64)[:, None] * D + d[None, :]
    cos, sin = tl.load(turn, is_new, 0.0), tl.load(turn + half, is_new, 0.0)
    q_at = row + head * D + d[None, :]
    q_low, q_high = tl.load(q_at, is_new, 0.0), tl.load(q_at + half, is_new, 0.0)
    k_at = row + (NUM_HEADS + kv_head) * D + d[None, :]
    k_low, k_high = tl.load(k_at, is_new, 0.0), tl.load(k_at + half, is_new, 0.0)
    v_at = k_at + NUM_KV * D
    v_low, v_high = tl.load(v_at, is_new, 0.0), tl.load(v_at + half, is_new, 0.0)
    keys = ring + slot * slot_stride + kv_head * (RING * D)
    values = keys + NUM_KV * RING * D
    place = ((seen + t) % RING)[:, None] * D + d[None, :]
    dtype: tl.constexpr = ring.dtype.element_ty
    tl.store(keys + place, clamped(k_low * cos - k_high * sin, dtype), mask=is_new)
    tl.store(keys + place + half, clamped(k_high * cos + k_low * sin, dtype), mask=is_new)
    tl.store(values + place, clamped(v_low, dtype), mask=is_new)
    tl.store(values + place + half, clamped(v_high, dtype), mask=is_new)
    tl.debug_barrier()  # the new frames are read back below
    # A key's place in the sums is its place in the ring, for every chunk size.
    j = tl.arange(0, BLOCK_K)
    last = seen + length - 1
    position = last - (last + RING - j) % RING  # newest position stored at ring place j
    is_key = (position >= 0) & (j < RING)
    place = j[:, None] * D + d[None, :]
    mask = is_key[:, None] & (d < half)[None, :]
    k_low, k_high = tl.load(keys + place, mask, 0.0), tl.load(keys + place + half, mask, 0.0)
    v_low, v_high = tl.load(values + place, mask, 0.0), tl.load(values + place + half, mask, 0.0)
    low = clamped(q_low * cos - q_high * sin, dtype).to(dtype)
    high = clamped(q_high * cos + q_low * sin, dtype).to(dtype)
    scores = tl.dot(low, tl.trans(k_low), input_precision=PRECISION)
    scores = tl.dot(high, tl.trans(k_high), scores, input_precision=PRECISION)
    age = (seen + t)[:, None] - position[None, :]
    is_near = is_key[None, :] & (age >= 0) & (age < WINDOW)
    scores = tl.where(is_near, scores * softmax_scale, -float("inf"))
    # A row after `length` may have no visible key.
    peak = tl.maximum(tl.max(scores, axis=1), -1e30)
    share = tl.exp(scores - peak[:, None])
    share = (share / tl.maximum(tl.sum(share, axis=1), 1e-30)[:, None]).to(dtype)
    at = out + (batch * length + t).to(tl.int64)[:, None] * (NUM_HEADS * D) + head * D + d[None, :]
    tl.store(at, tl.dot(share, v_low, input_precision=PRECISION), mask=is_new)
    tl.store(at + half, tl.dot(share, v_high, input_precision=PRECISION), mask=is_new)
