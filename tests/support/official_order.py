"""A transformer stack in the official order of operations, for the machine at hand.

Products are separate, keys and values are repeated for each query head, RMSNorm is computed in
float32 and rounded before it is scaled, and RoPE turns halves. In bfloat16 the result depends on
the CPU's own matrix kernels, so it shows which differences come from the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vivace.model.layers import Block, RMSNorm, Rope

Past = list[tuple[Tensor, Tensor]]


class OfficialOrder:
    """The layers of a talker or a predictor, with keys and values kept between calls."""

    def __init__(self, layers: nn.ModuleList, norm: RMSNorm, rope: Rope) -> None:
        self._blocks = [cast(Block, layer) for layer in layers]
        self._norm, self._rope = norm, rope
        self._past: Past = []

    def __call__(self, rows: Tensor) -> Tensor:
        """Rows [T, width], after those of earlier calls, to hidden states [T, width]."""
        start = self._past[0][0].shape[2] if self._past else 0
        cos, sin = self._angles(start, len(rows), rows.dtype)
        x = rows[None]
        for index, block in enumerate(self._blocks):
            x = x + self._attend(index, block, _rms(x, block.input_layernorm), cos, sin)
            inner = _rms(x, block.post_attention_layernorm)
            gate, up = _linear(block.mlp.gate_proj, inner), _linear(block.mlp.up_proj, inner)
            x = x + _linear(block.mlp.down_proj, F.silu(gate) * up)
        return _rms(x, self._norm)[0]

    def _angles(self, start: int, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        size = self._rope.head_dim
        frequencies = 1 / self._rope.theta ** (torch.arange(0, size, 2).float() / size)
        angles = torch.outer(torch.arange(start, start + length).float(), frequencies)
        both = torch.cat((angles, angles), dim=-1)
        return both.cos().to(dtype), both.sin().to(dtype)

    def _attend(self, index: int, block: Block, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        attention = block.self_attn
        assert attention.q_norm is not None
        assert attention.k_norm is not None
        q = _turn(_rms(_heads(attention.q_proj, x, attention.head_dim), attention.q_norm), cos, sin)
        k = _turn(_rms(_heads(attention.k_proj, x, attention.head_dim), attention.k_norm), cos, sin)
        v = _heads(attention.v_proj, x, attention.head_dim)
        if index < len(self._past):
            k, v = (torch.cat(pair, dim=2) for pair in zip(self._past[index], (k, v), strict=True))
            self._past[index] = k, v
        else:
            self._past.append((k, v))
        group = q.shape[1] // k.shape[1]
        k, v = (part.repeat_interleave(group, dim=1) for part in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] == k.shape[2] > 1)
        return _linear(attention.o_proj, mixed.transpose(1, 2).flatten(2))


def read_steps(stack: OfficialOrder, parts: Sequence[Tensor]) -> Tensor:
    """The last hidden state of each part, one call for each."""
    return torch.cat([stack(part)[-1:] for part in parts])


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    return F.linear(x, layer.weight.clone())  # a copy: fused products share its memory


def _heads(layer: nn.Linear, x: Tensor, head_dim: int) -> Tensor:
    return _linear(layer, x).unflatten(-1, (-1, head_dim)).transpose(1, 2)  # [1, heads, T, dim]


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _rms(x: Tensor, norm: RMSNorm) -> Tensor:
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.eps)
    return norm.weight * scaled.to(x.dtype)
