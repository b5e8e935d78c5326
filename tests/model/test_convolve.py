"""Convolutions as matrix products, on a CPU, against PyTorch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from vivace.model import ops


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@given(
    channels=st.integers(1, 12),
    out=st.integers(1, 12),
    kernel=st.integers(1, 7),
    dilation=st.integers(1, 9),
    length=st.integers(1, 40),
    has_bias=st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_convolve_equals_torch_conv1d(
    channels: int, out: int, kernel: int, dilation: int, length: int, has_bias: bool
) -> None:
    x = random(1, channels, length + (kernel - 1) * dilation)
    weight, bias = random(out, channels, kernel), random(out) if has_bias else None
    expected = F.conv1d(x, weight, bias, dilation=dilation)
    assert torch.allclose(ops.convolve(x, weight, bias, dilation, 1), expected, atol=1e-5)


@pytest.mark.parametrize("has_bias", [True, False])
def test_depthwise_convolve_equals_torch_conv1d(has_bias: bool) -> None:
    x, weight, bias = random(1, 16, 20), random(16, 1, 7), random(16) if has_bias else None
    expected = F.conv1d(x, weight, bias, groups=16)
    assert torch.allclose(ops.convolve(x, weight, bias, 1, 16), expected, atol=1e-5)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (16, 8), (6, 3)])
def test_convolve_transposed_equals_torch(batch: int, kernel: int, stride: int) -> None:
    x, weight, bias = random(batch, 6, 9), random(6, 4, kernel), random(4)
    whole = F.conv_transpose1d(x, weight, bias, stride=stride)
    expected = whole if kernel == stride else whole[..., stride : 9 * stride]
    found = ops.convolve_transposed(x, weight, bias, stride)
    assert torch.allclose(found, expected, atol=1e-5)


def test_convolve_reads_non_contiguous_columns() -> None:
    x, weight = random(1, 30, 5).transpose(1, 2), random(3, 5, 4)
    assert torch.allclose(ops.convolve(x, weight, None, 2, 1), F.conv1d(x, weight, dilation=2))


def test_large_convolution_uses_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = random(1, 5, 30), random(3, 5, 4)
    monkeypatch.setattr(ops, "MAX_WINDOWS", 5 * 4 * 30 - 1)
    monkeypatch.setattr(ops, "_windows", lambda *_: pytest.fail("windows were made"))
    assert torch.equal(ops.convolve(x, weight, None, 1, 1), F.conv1d(x, weight))
