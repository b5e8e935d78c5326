"""The reference maths, with the official rounding points.

In bfloat16 every intermediate result that the official code rounds is rounded here too. Faster
kernels are tested against these functions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_WINDOWS = 2_400_000  # elements; more would exceed a core's cache


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalised in float32, rounded to the working dtype, then scaled: two roundings."""
    return F.rms_norm(x, x.shape[-1:], None, eps) * weight


def rope_frequencies(head_dim: int, theta: float, device: torch.device) -> Tensor:
    """Radians per position: float32 [head_dim / 2]."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64, device=device).float() / head_dim
    return 1.0 / (theta**exponents)


def rope_table(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines of positions [...]: float32 [..., head_dim]."""
    frequencies = rope_frequencies(head_dim, theta, positions.device)
    angles = positions[..., None].float() * frequencies  # [..., head_dim / 2]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def apply_rope(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Rotate-half: dimension j turns with dimension j + head_dim / 2; the sign is in the table."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((second, first), dim=-1) * signed_sin


def attention(
    q: Tensor,  # [B, heads, T, head_dim]
    k: Tensor,  # [B, kv_heads, S, head_dim]
    v: Tensor,
    *,
    mask: Tensor | None = None,  # bool [T, S], True where a key is seen
    is_causal: bool = False,
) -> Tensor:
    if q.is_cpu and q.shape[2] == 1 and mask is None:
        # Heads that share keys are rows of one attention; otherwise a CPU would copy the keys.
        rows = q.reshape(q.shape[0], k.shape[1], -1, q.shape[3])
        return F.scaled_dot_product_attention(rows, k, v).reshape(q.shape)
    if q.shape[1] == k.shape[1]:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=is_causal, enable_gqa=True
    )


def gated_mlp(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def snake_beta(x: Tensor, frequency: Tensor, inverse_gain: Tensor) -> Tensor:
    """x + sin²(x·e^α) / e^β, with both exponentials taken at load; x is [B, C, T]."""
    return (x * frequency).sin_().square_().mul_(inverse_gain).add_(x)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int, groups: int) -> Tensor:
    """x [B, C, T + reach] to [B, out, T]; groups is 1, or C for a filter per channel."""
    if not _is_one_on_cpu(x) or weight[0].numel() * x.shape[-1] > MAX_WINDOWS:
        return F.conv1d(x, weight, bias, dilation=dilation, groups=groups)
    windows = _windows(x[0], weight.shape[-1], dilation)  # [C, kernel, T]
    if groups > 1:
        out = (windows * weight[:, 0, :, None]).sum(1)
        return (out if bias is None else out + bias[:, None])[None]
    return _multiply(weight.flatten(1), windows.flatten(0, 1), bias)[None]


def convolve_transposed(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    """x [B, C, T] to [B, out, T * stride], or to (T - 1) * stride where the kernel, twice the
    stride, needs two inputs for an output."""
    has_overlap = weight.shape[-1] > stride
    if not _is_one_on_cpu(x):
        length = x.shape[-1] * stride
        out = F.conv_transpose1d(x, weight, bias, stride=stride)
        return out[..., stride:length] if has_overlap else out
    spread = torch.mm(x[0].t(), weight.flatten(1))  # [T, out * kernel]
    spread = spread.unflatten(1, weight.shape[1:]).transpose(0, 1)  # [out, T, kernel]
    if has_overlap:
        spread = spread[:, 1:, :stride] + spread[:, :-1, stride:]
    return (spread + bias[:, None, None]).flatten(1)[None]


def _is_one_on_cpu(x: Tensor) -> bool:
    """Whether a matrix product is faster than PyTorch's convolution (up to four times)."""
    return x.is_cpu and len(x) == 1


def _windows(x: Tensor, size: int, dilation: int) -> Tensor:
    """Windows of x [C, T + reach] with `size` columns, `dilation` apart: [C, size, T]."""
    rows, columns = x.stride()
    length = x.shape[1] - (size - 1) * dilation
    shape, strides = (len(x), size, length), (rows, dilation * columns, columns)
    return x.as_strided(shape, strides, x.storage_offset())


def _multiply(weight: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
    return torch.mm(weight, x) if bias is None else torch.addmm(bias[:, None], weight, x)
