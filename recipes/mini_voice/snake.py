"""SnakeBeta as one kernel forward and one backward, for training only.

In eager PyTorch it is a third of the decoder's memory traffic. The kernel is compared with the
reference before use. Without Triton, or if the results differ, the reference is used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vivace.model import ops

REFERENCE = ops.snake_beta
BLOCK = 2048

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

if triton is not None:

    @triton.jit
    def _forward(x, f, g, y, channels, length, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0)
        at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = at < length
        channel = row % channels
        value = tl.load(x + row.to(tl.int64) * length + at, mask=inside, other=0.0).to(tl.float32)
        wave = tl.sin(value * tl.load(f + channel))
        out = value + tl.load(g + channel) * wave * wave
        tl.store(y + row.to(tl.int64) * length + at, out.to(y.dtype.element_ty), mask=inside)

    @triton.jit
    def _backward(x, f, g, dy, dx, df, dg, channels, length, blocks, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0)
        block = tl.program_id(1)
        at = block * BLOCK + tl.arange(0, BLOCK)
        inside = at < length
        channel = row % channels
        base = row.to(tl.int64) * length
        value = tl.load(x + base + at, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(dy + base + at, mask=inside, other=0.0).to(tl.float32)
        frequency = tl.load(f + channel)
        gain = tl.load(g + channel)
        angle = value * frequency
        sine = tl.sin(angle)
        slope = 2.0 * sine * tl.cos(angle)
        out = grad * (1.0 + gain * frequency * slope)
        tl.store(dx + base + at, out.to(dx.dtype.element_ty), mask=inside)
        place = row * blocks + block
        tl.store(df + place, tl.sum(grad * gain * value * slope))
        tl.store(dg + place, tl.sum(grad * sine * sine))


class FastSnake(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, frequency: Tensor, inverse_gain: Tensor) -> Tensor:
        x = x.contiguous()
        f, g = frequency.float().contiguous(), inverse_gain.float().contiguous()
        y = torch.empty_like(x)
        batch, channels, length = x.shape
        blocks = triton.cdiv(length, BLOCK)
        _forward[(batch * channels, blocks)](x, f, g, y, channels, length, BLOCK=BLOCK)
        ctx.save_for_backward(x, f, g)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, f, g = ctx.saved_tensors
        batch, channels, length = x.shape
        blocks = triton.cdiv(length, BLOCK)
        dy, dx = dy.contiguous(), torch.empty_like(x)
        df = torch.empty(batch, channels, blocks, device=x.device)
        dg = torch.empty_like(df)
        _backward[(batch * channels, blocks)](
            x, f, g, dy, dx, df, dg, channels, length, blocks, BLOCK=BLOCK
        )
        return dx, df.sum((0, 2))[:, None], dg.sum((0, 2))[:, None]


def fast_snake(x: Tensor, frequency: Tensor, inverse_gain: Tensor) -> Tensor:
    if not x.is_cuda:
        return REFERENCE(x, frequency, inverse_gain)
    return FastSnake.apply(x, frequency, inverse_gain)


def use_fast_snake() -> bool:
    """Replace `ops.snake_beta` by the kernel if both compute the same."""
    if triton is None or not torch.cuda.is_available():
        return False
    try:
        error = _largest_error()
    except Exception as problem:
        print(f"fast snake: not used ({type(problem).__name__}: {problem})", flush=True)
        return False
    if error > 1e-4:
        print(f"fast snake: not used, relative error {error:.2e}", flush=True)
        return False
    ops.snake_beta = fast_snake
    print(f"fast snake: used, relative error {error:.1e}", flush=True)
    return True


def _largest_error() -> float:
    generator = torch.Generator("cuda").manual_seed(3)
    x = torch.randn(3, 5, 5001, device="cuda", generator=generator)
    f = torch.rand(5, 1, device="cuda", generator=generator) + 0.5
    g = torch.rand(5, 1, device="cuda", generator=generator) + 0.5
    weight = torch.randn(3, 5, 5001, device="cuda", generator=generator)
    results = []
    for function in (REFERENCE, fast_snake):
        inputs = [t.clone().requires_grad_() for t in (x, f, g)]
        y = function(*inputs)
        (y * weight).sum().backward()
        results.append([y.detach(), *(t.grad for t in inputs)])
    pairs = zip(*results, strict=True)
    return max(float((b - a).norm() / a.norm()) for a, b in pairs)
