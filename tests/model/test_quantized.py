"""int8 and int4 weights: layout, least-squares scales, the defining product."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vivace.model.quantized import (
    GROUP,
    Bits,
    QuantizedLinear,
    dequantize,
    join,
    multiply,
    pack,
    quantize,
    round_activations,
    unpack,
)

BITS: tuple[Bits, ...] = (4, 8)


def _weight(rows: int = 24, width: int = 128, seed: int = 0) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 0.02


def _error(got: Tensor, wanted: Tensor) -> float:
    return float((got - wanted).norm() / wanted.norm())


@pytest.mark.parametrize(("bits", "most"), [(4, 0.09), (8, 0.009)])
def test_round_trip_error_is_small(bits: Bits, most: float) -> None:
    weight = _weight()
    assert _error(dequantize(quantize(weight, bits)), weight) < most


def test_int4_scales_have_less_error_than_the_range_of_the_group() -> None:
    groups = _weight().view(-1, GROUP)
    scale = groups.abs().amax(1, keepdim=True) / 7
    by_range = (groups / scale).round() * scale
    fitted = dequantize(quantize(groups.reshape(24, -1), 4)).view(-1, GROUP)
    errors = (fitted - groups).norm(dim=1), (by_range - groups).norm(dim=1)
    assert float(errors[0].norm()) < 0.9 * float(errors[1].norm())
    assert bool((errors[0] <= errors[1] * 1.001).all())  # in every group


def test_int4_bytes_have_the_documented_order() -> None:
    codes = torch.arange(GROUP).remainder(16).sub(8).to(torch.int8)[None]  # -8..7, -8..7
    codes[0, 16] = 7
    packed = pack(codes)
    assert packed[0, 0] == 0 | 15 << 4  # input 0 low, input 16 high
    assert packed[0, 1] == 1 | 1 << 4
    assert torch.equal(unpack(packed), codes)


@pytest.mark.parametrize("bits", BITS)
def test_numbers_that_a_format_represents_are_kept(bits: Bits) -> None:
    low, high = (-8, 8) if bits == 4 else (-127, 128)
    codes = torch.randint(low, high, (6, 64), generator=torch.Generator().manual_seed(1))
    codes[:, ::GROUP] = low
    weight = codes * 0.125
    assert torch.equal(dequantize(quantize(weight, bits)), weight)


def test_int8_scales_are_not_negative() -> None:
    weight = _weight()
    weight[:, 5] = -1  # the number of largest magnitude
    weight[1] = 0
    assert bool((quantize(weight, 8).scale[2:] > 0).all())
    assert float(quantize(weight, 8).scale[1]) == 0


@pytest.mark.parametrize("bits", BITS)
def test_zero_and_tiny_weights_stay_finite(bits: Bits) -> None:
    weight = _weight()
    weight[0], weight[1] = 0, 1e-42
    linear = quantize(weight, bits)
    assert bool(torch.isfinite(dequantize(linear)).all())
    assert float(dequantize(linear)[0].abs().max()) == 0


@pytest.mark.parametrize("bits", BITS)
def test_product_is_the_product_with_rounded_activations(bits: Bits) -> None:
    linear, x = quantize(_weight(), bits), torch.randn(5, 128)
    codes, scale = round_activations(x)
    assert scale.shape == (5, 128 // GROUP)
    assert torch.equal(codes, codes.round())
    assert float(codes.abs().max()) == 127
    rounded = (codes * scale[..., None]).view(5, 128)
    torch.testing.assert_close(multiply(x, linear), rounded @ dequantize(linear).t())
    assert _error(multiply(x, linear), x @ dequantize(linear).t()) < 0.02


@pytest.mark.parametrize("bits", BITS)
def test_outlier_affects_only_its_group(bits: Bits) -> None:
    linear, x = quantize(_weight(), bits), torch.randn(1, 128)
    x[0, 40] = 1e4
    outlier = torch.zeros_like(x)
    outlier[0, 40] = 1e4
    rest = multiply(x, linear) - multiply(outlier, linear)
    wanted = x.clone()
    wanted[0, 32:64] = 0  # the group of the outlier
    assert _error(rest, wanted @ dequantize(linear).t()) < 0.05


@pytest.mark.parametrize("bits", BITS)
def test_product_of_a_row_does_not_depend_on_other_rows(bits: Bits) -> None:
    linear, x = quantize(_weight(), bits), torch.randn(7, 128)
    alone = torch.cat([multiply(row[None], linear) for row in x])
    assert torch.equal(multiply(x, linear), alone)
    x[3] = torch.inf
    spoilt = multiply(x, linear)
    assert torch.equal(spoilt[:3], alone[:3])
    assert not bool(torch.isfinite(spoilt[3]).any())
    assert torch.equal(multiply(torch.zeros(1, 128), linear), torch.zeros(1, 24))


@pytest.mark.parametrize("bits", BITS)
def test_join_has_the_outputs_of_all_parts(bits: Bits) -> None:
    parts, x = [quantize(_weight(seed=seed), bits) for seed in range(3)], torch.randn(2, 128)
    joined = multiply(x, join(*parts))
    assert torch.equal(joined, torch.cat([multiply(x, part) for part in parts], dim=1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weight: weight.fill_(torch.nan), "non-finite"),
        (lambda weight: weight.fill_(torch.inf), "non-finite"),
        (lambda weight: weight.fill_(1e6), "largest scale"),
    ],
)
def test_weights_that_int4_cannot_hold_are_refused(
    change: Callable[[Tensor], Tensor], message: str
) -> None:
    weight = _weight()
    change(weight[3:4])
    with pytest.raises(ValueError, match=message):
        quantize(weight, 4)


def test_int4_refuses_incomplete_groups() -> None:
    with pytest.raises(ValueError, match="whole groups"):
        quantize(torch.zeros(4, 40), 4)
    linear, x = quantize(_weight(4, 40), 8), torch.randn(2, 40)
    assert linear.in_features == 40
    assert _error(multiply(x, linear), x @ dequantize(linear).t()) < 0.02


def test_parts_that_do_not_fit_together_are_refused() -> None:
    linear = quantize(_weight(), 8)
    with pytest.raises(ValueError, match="int8 needs int8 weights"):
        QuantizedLinear(linear.weight.to(torch.uint8), linear.scale, 8)
    with pytest.raises(ValueError, match="scales have shape"):
        QuantizedLinear(linear.weight, linear.scale[1:], 8)
    with pytest.raises(ValueError, match="no int4 matrix"):
        QuantizedLinear(torch.zeros(4, 20, dtype=torch.uint8), torch.zeros(4, 1).half(), 4)
