"""PyTorch's kernels compute the products of quantized layers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vivace.model.layers import Linear
from vivace.model.quantized import Bits, QuantizedLinear, dequantize, quantize
from vivace.model.quantized_layers import MANY_ROWS, Product, QuantizedLayer
from vivace.model.torch_kernels import (
    FbgemmProduct,
    KleidiProduct,
    WeightOnlyProduct,
    has_fbgemm,
    has_kleidi,
    use_torch_kernels,
)

needs_fbgemm = pytest.mark.skipif(not has_fbgemm(), reason="needs x86-64")
needs_kleidi = pytest.mark.skipif(not has_kleidi(), reason="needs ARM with KleidiAI")
SHAPES = [(96, 128), (40, 64)]


def make(rows: int, width: int, bits: Bits) -> tuple[QuantizedLinear, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(rows, width, generator=generator) * 0.02
    weight[3] = 0
    return quantize(weight, bits), torch.randn(3, width, generator=generator)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("kernel", "bits", "limit"),
    [
        (WeightOnlyProduct, 8, 1e-5),
        pytest.param(FbgemmProduct, 8, 0.03, marks=needs_fbgemm),
        pytest.param(KleidiProduct, 4, 0.03, marks=needs_kleidi),
    ],
)
def test_kernel_computes_the_product(
    shape: tuple[int, int], kernel: Callable[[QuantizedLinear], Product], bits: Bits, limit: float
) -> None:
    linear, x = make(*shape, bits)
    wanted = x @ dequantize(linear).t()
    got = kernel(linear)(x)
    assert float((got - wanted).norm() / wanted.norm()) < limit
    assert torch.equal(kernel(linear)(torch.zeros_like(x)), torch.zeros_like(got))


@needs_fbgemm
def test_fbgemm_row_does_not_depend_on_other_rows() -> None:
    linear, x = make(96, 128, 8)
    product = FbgemmProduct(linear)
    x[1] *= 1000
    assert torch.equal(product(x), torch.cat([product(row[None]) for row in x]))


def layer_of(linear: QuantizedLinear, bias: Tensor | None = None) -> QuantizedLayer:
    plain = Linear(linear.in_features, linear.out_features, bias=bias is not None)
    layer = QuantizedLayer({"x": plain}, linear.bits)
    values = {"weight": linear.weight, "scale": linear.scale}
    layer.load_state_dict(values if bias is None else {**values, "bias": bias}, assign=True)
    return layer


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("num_rows", [1, MANY_ROWS, MANY_ROWS + 1])
@pytest.mark.parametrize("has_kernels", [False, True])
def test_layer_computes_products_of_few_and_many_rows(
    bits: Bits, num_rows: int, has_kernels: bool
) -> None:
    linear, _ = make(96, 128, bits)
    layer = layer_of(linear, bias := torch.randn(96))
    if has_kernels:
        assert use_torch_kernels(layer)
    x = torch.randn(1, num_rows, 128)
    wanted = x @ dequantize(linear).t() + bias
    assert layer(x).shape == (1, num_rows, 96)
    assert float((layer(x) - wanted).norm() / wanted.norm()) < 0.03
