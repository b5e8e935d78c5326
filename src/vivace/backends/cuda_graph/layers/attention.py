"""Launches attention kernels: output allocation, grids and options."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vivace.backends.cuda_graph.buckets import TILE
from vivace.backends.cuda_graph.compile import is_collecting
from vivace.backends.cuda_graph.launch_sizes import power_of_two
from vivace.backends.cuda_graph.layers import attention_kernels
from vivace.backends.cuda_graph.layers.attention_cuda import (
    NUM_POSITIONS,
    CudaAttention,
    load_attention,
)
from vivace.backends.cuda_graph.layers.frame import KvPositions
from vivace.backends.cuda_graph.layers.products import options
from vivace.backends.cuda_graph.slots.pages import PAGE
from vivace.backends.cuda_graph.slots.table import SlotTable
from vivace.model.layers import Block, RMSNorm

CHUNK = PAGE  # keys of one step of attention
SPAN = 4  # chunks per block; the same for all batches: the order of a sum depends on it
SLOT_WARPS, MERGE_WARPS, FRAME_WARPS = 2, 1, 1  # fastest on an H200 for all batch sizes


@dataclass(frozen=True, slots=True)
class Heads:
    """The dimensions of one transformer's attention, and its rope tables."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    cos: Tensor  # [positions, head_dim]
    sin: Tensor

    @property
    def group(self) -> int:
        return self.num_heads // self.num_kv_heads

    @property
    def width(self) -> int:
        return self.num_heads * self.head_dim

    def cuda_kernels(self, device: torch.device) -> CudaAttention | None:
        return load_attention(device, self.head_dim, self.group, self.num_kv_heads)


@dataclass(frozen=True, slots=True)
class SlotKeys:
    """Keys and values of one layer, for all slots.

    Talker: [pages, kv_heads, CHUNK, head_dim]. Predictor, for one frame:
    [B, kv_heads, positions, head_dim].
    """

    keys: Tensor
    values: Tensor
    layer: int = -1  # of the talker


@dataclass(frozen=True, slots=True)
class Scratch:
    """Partial results of split-KV attention, before they are merged."""

    out: Tensor  # float32 [B, heads, spans, head_dim]
    peak: Tensor  # float32 [B, heads, spans]
    total: Tensor

    @classmethod
    def make(cls, batch: int, heads: Heads, num_keys: int, device: torch.device) -> Scratch:
        shape = (batch, heads.num_heads, -(-num_keys // (SPAN * CHUNK)))
        return cls(
            out=torch.empty(*shape, heads.head_dim, device=device),
            peak=torch.empty(shape, device=device),
            total=torch.empty(shape, device=device),
        )


def attend_slots(
    qkv: Tensor,  # [B, (heads + 2 kv_heads) * head_dim]
    block: Block,
    heads: Heads,
    cache: SlotKeys,
    table: SlotTable,
    place: KvPositions,
    scratch: Scratch,
) -> Tensor:
    """Attention of each row's new token to its slot's KV cache, [B, heads * head_dim]."""
    q_norm, k_norm = _norms(block)
    batch, num_spans = len(qkv), scratch.peak.shape[2]
    out = torch.empty(batch, heads.width, dtype=qkv.dtype, device=qkv.device)
    tensors = (
        qkv, cache.keys, cache.values, table.pages, q_norm.weight, k_norm.weight,
        heads.cos, heads.sin, place.slots, place.position, place.num_keys,
        out if num_spans == 1 else scratch.out, scratch.peak, scratch.total,
    )  # fmt: skip
    kernels = heads.cuda_kernels(qkv.device)
    if kernels is None:
        attention_kernels.attend_slots_kernel[(batch, heads.num_kv_heads, num_spans)](
            *tensors, *_strides(cache, table), q_norm.eps, heads.head_dim**-0.5,
            table.watch, table.scores, table.scores.stride(0), cache.layer,
            NUM_KV=heads.num_kv_heads, GROUP=heads.group, D=heads.head_dim,
            CHUNK=CHUNK, SPAN=SPAN, NUM_SPANS=num_spans, num_warps=SLOT_WARPS,
            num_stages=2, **options(qkv, is_rotating=True),
        )  # fmt: skip
    elif not is_collecting():
        watched = (*tensors, table.watch, table.scores)
        kernels.attend_slots(watched, num_spans, cache.layer, q_norm.eps)
    if num_spans > 1:
        attention_kernels.merge_spans_kernel[(batch, heads.num_heads)](
            scratch.out, scratch.peak, scratch.total, place.num_keys, out,
            D=heads.head_dim, KEYS=SPAN * CHUNK, NUM_SPANS=num_spans, num_warps=MERGE_WARPS,
            **options(qkv),
        )  # fmt: skip
    return out


def attend_prompts(
    qkv: Tensor,  # [M, (heads + 2 kv_heads) * head_dim]
    block: Block,
    heads: Heads,
    cache: SlotKeys,
    table: SlotTable,
    slots: Tensor,
    positions: Tensor,
) -> Tensor:
    """Causal attention of prompt rows, each `TILE` of one slot, to their slots' KV cache."""
    q_norm, k_norm = _norms(block)
    stored, tables = (cache.keys, cache.values, table.pages), (heads.cos, heads.sin)
    shape = {"NUM_KV": heads.num_kv_heads, "GROUP": heads.group, "D": heads.head_dim}
    attention_kernels.store_keys_kernel[(len(qkv),)](
        qkv, *stored, k_norm.weight, *tables, slots, positions,
        *_strides(cache, table), k_norm.eps,
        BLOCK=power_of_two(heads.num_kv_heads), CHUNK=CHUNK,
        num_warps=4, **shape, **options(qkv, is_rotating=True),
    )  # fmt: skip
    out = torch.empty(len(qkv), heads.width, dtype=qkv.dtype, device=qkv.device)
    attention_kernels.attend_prompts_kernel[(len(qkv) // TILE, heads.num_kv_heads)](
        qkv, *stored, q_norm.weight, *tables, slots, positions, out,
        *_strides(cache, table), table.num_positions, q_norm.eps, heads.head_dim**-0.5,
        ROWS=TILE, BLOCK=max(16, power_of_two(TILE * heads.group)), CHUNK=CHUNK,
        num_warps=4, num_stages=3, **shape, **options(qkv, is_rotating=True),
    )  # fmt: skip
    return out


def _strides(cache: SlotKeys, table: SlotTable) -> tuple[int, int, int]:
    return table.pages.stride(0), cache.keys.stride(0), cache.keys.stride(1)


def attend_frame(
    qkv: Tensor,  # [B * num_new, (heads + 2 kv_heads) * head_dim]
    block: Block,
    heads: Heads,
    cache: SlotKeys,
    first: int,
    num_new: int,
) -> Tensor:
    """Attention of the predictor's new tokens to the earlier ones of the same frame."""
    q_norm, k_norm = _norms(block)
    out = torch.empty(len(qkv), heads.width, dtype=qkv.dtype, device=qkv.device)
    num_positions = cache.keys.shape[2]
    tensors = (
        qkv, cache.keys, cache.values, q_norm.weight, k_norm.weight, heads.cos, heads.sin, out
    )  # fmt: skip
    kernels = heads.cuda_kernels(qkv.device) if num_positions == NUM_POSITIONS else None
    if kernels is not None:
        if not is_collecting():
            kernels.attend_frame(tensors, first, num_new, q_norm.eps)
        return out
    attention_kernels.attend_frame_kernel[(len(qkv) // num_new, heads.num_kv_heads)](
        *tensors, first, q_norm.eps, heads.head_dim**-0.5,
        NUM_KV=heads.num_kv_heads, GROUP=heads.group, D=heads.head_dim,
        NUM_NEW=num_new, NUM_POSITIONS=num_positions,
        BLOCK=max(16, power_of_two(num_positions)), ROWS=power_of_two(num_new * heads.group),
        num_warps=FRAME_WARPS,
        **options(qkv, is_rotating=True),
    )  # fmt: skip
    return out


def _norms(block: Block) -> tuple[RMSNorm, RMSNorm]:
    q_norm, k_norm = block.self_attn.q_norm, block.self_attn.k_norm
    assert q_norm is not None
    assert k_norm is not None
    return q_norm, k_norm
