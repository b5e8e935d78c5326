"""Launches the kernels of the codec's transformer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vivace.backends.cuda_graph.buckets import CODEC_FRAMES
from vivace.backends.cuda_graph.codec.attention_kernels import attend_kernel, rotations_kernel
from vivace.backends.cuda_graph.codec.histories import Past
from vivace.backends.cuda_graph.codec.layers import Product
from vivace.backends.cuda_graph.codec.tiles import SPLIT
from vivace.backends.cuda_graph.launch_sizes import power_of_two


@dataclass(frozen=True, slots=True)
class Rope:
    """The rotations of the transformer's queries and keys."""

    frequencies: Tensor  # [head_dim / 2]

    def rotations(self, slots: Tensor, num_seen: Tensor, length: int) -> Tensor:
        """Cosines and sines of the slots' next positions: [B, length, 2, head_dim / 2]."""
        batch, half = len(slots), len(self.frequencies)
        out = self.frequencies.new_empty(batch, length, 2, half)
        rotations_kernel[(batch,)](
            slots, num_seen, self.frequencies, out, length,
            HALF=half, BLOCK_T=CODEC_FRAMES[0], BLOCK_D=max(16, power_of_two(half)),
        )  # fmt: skip
        return out


@dataclass(frozen=True, slots=True)
class RingAttention:
    """Attention of new frames to the slot's last `window` frames, stored in a ring."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int
    ring_length: int
    ring: int  # number of the history

    def run(self, qkv: Tensor, past: Past) -> Tensor:
        """[B, T, (heads + 2 kv_heads) * head_dim] to [B, T, heads * head_dim]."""
        batch, length, _ = qkv.shape
        ring = past.histories.view(self.ring)
        out = qkv.new_empty(batch, length, self.num_heads * self.head_dim)
        attend_kernel[(batch, self.num_heads)](
            qkv, ring, past.slots, past.num_seen, past.rotations, out,
            length, ring.stride(0), self.head_dim**-0.5,
            NUM_HEADS=self.num_heads, NUM_KV=self.num_kv_heads, D=self.head_dim,
            WINDOW=self.window, RING=self.ring_length, BLOCK_T=CODEC_FRAMES[0],
            BLOCK_D=max(16, power_of_two(self.head_dim // 2)),
            BLOCK_K=max(16, power_of_two(self.ring_length)),
            PRECISION=SPLIT,  # of float32 products
        )  # fmt: skip
        return out


@dataclass(frozen=True, slots=True)
class TransformerLayer:
    project: Product  # queries, keys, values
    attention: RingAttention
    merge: Product
    gate_up: Product
    down: Product

    def run(self, x: Tensor, past: Past) -> Tensor:
        attended = self.attention.run(self.project.run(x, past), past)
        x = self.merge.run(attended, past, residual=x)
        return self.down.run(self.gate_up.run(x, past), past, residual=x)
