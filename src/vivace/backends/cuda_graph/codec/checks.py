"""Compares the codec's kernels for Hopper GPUs with PyTorch on random numbers."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from vivace.backends.cuda_graph.codec.operands import ColumnParameters, Outputs, WideLayer
from vivace.backends.cuda_graph.hopper.loading import compare


def convolved(x: Tensor, weight: Tensor) -> Tensor:
    """[B, T, in] and [taps, out, in] to [B, T - taps + 1, out], in float32."""
    filters = weight.float().permute(1, 2, 0)
    return F.conv1d(x.float().transpose(1, 2), filters).transpose(1, 2)


def random_unit(
    taps: int, size: int, device: torch.device
) -> tuple[Tensor, Tensor, ColumnParameters]:
    """Weights of a unit's convolution and linear layer, and parameters of both."""
    generator = torch.Generator(device).manual_seed(0)
    draw = partial(torch.randn, device=device, generator=generator)
    first, second = (
        draw(count, size, size).mul((count * size) ** -0.5).half() for count in (taps, 1)
    )
    return first, second, ColumnParameters(*(draw(size).abs() for _ in range(3)))


def compare_unit(
    unit: WideLayer, first: Tensor, second: Tensor, parameters: ColumnParameters
) -> None:
    """Compare a residual unit without dilation, whose layers have these parameters, with PyTorch.

    Raises `BackendUnavailableError` if the results differ.
    """
    taps, size, _ = first.shape
    generator = torch.Generator(first.device).manual_seed(1)
    draw = partial(torch.randn, device=first.device, generator=generator)
    x, residual = draw(2, taps - 1 + 300, size).half(), draw(2, 300, size).half()
    out, active = torch.empty_like(residual), torch.empty_like(residual)
    unit.run(x, Outputs(residual, out, active))
    hidden = parameters.activate(parameters.bias + convolved(x, first)).half()
    expected = parameters.bias + convolved(hidden, second) + residual
    compare(out, expected)
    compare(active, parameters.activate(expected))
