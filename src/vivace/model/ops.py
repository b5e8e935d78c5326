"""The reference maths, with the official rounding points.

A kernel that replaces one of these carries its name and signature and is tested against it.
In bfloat16 every intermediate result that the official code rounds is rounded here too.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalised in float32, rounded to the working dtype, then scaled: two roundings."""
    if x.is_cuda:
        return F.rms_norm(x, x.shape[-1:], None, eps) * weight  # one kernel, the same roundings
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale).to(x.dtype) * weight


def rope_table(
    start: int, length: int, head_dim: int, theta: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines of `length` positions from `start`: float32 [length, head_dim]."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64, device=device).float() / head_dim
    frequencies = 1.0 / (theta**exponents)
    positions = torch.arange(start, start + length, device=device).float()
    angles = torch.outer(positions, frequencies)  # [length, head_dim / 2]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def apply_rope(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Rotate-half: dimension j turns with dimension j + head_dim / 2; the sign is in the table."""
    return x * cos + x.roll(x.shape[-1] // 2, dims=-1) * signed_sin


def attention(
    q: Tensor,  # [B, heads, T, head_dim]
    k: Tensor,  # [B, kv_heads, S, head_dim]
    v: Tensor,
    *,
    mask: Tensor | None = None,  # bool [T, S], True where a key is seen
    is_causal: bool = False,
) -> Tensor:
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=is_causal, enable_gqa=q.shape[1] != k.shape[1]
    )


def gated_mlp(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def snake_beta(x: Tensor, frequency: Tensor, inverse_gain: Tensor) -> Tensor:
    """x + sin²(x·e^α) / e^β, with both exponentials taken at load; x is [B, C, T]."""
    return x + inverse_gain * torch.sin(x * frequency).square()
