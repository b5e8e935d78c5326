"""The codec's kernels for many rows against the kernels for few, bit for bit."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.support.cuda import CUDA, has_hopper
from vivace.model.codec import Codec

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from shapes import load_configs, random_module

from vivace.backends.cuda_graph.codec import fused as codec_fused
from vivace.backends.cuda_graph.codec.fused import FusedDecoder
from vivace.backends.cuda_graph.codec.histories import Histories, Past
from vivace.backends.cuda_graph.codec.kernels import SNAKE
from vivace.backends.cuda_graph.codec.layers import Activation, Product
from vivace.backends.cuda_graph.codec.operands import ColumnParameters, Outputs
from vivace.backends.cuda_graph.codec.product import (
    SHAPES,
    CodecProducts,
    Shape,
    WideProduct,
    load_products,
)
from vivace.backends.cuda_graph.codec.unit import UnitKernels, WideUnit, load_kernels

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not has_hopper(), reason="no Hopper GPU"),
    pytest.mark.usefixtures("seeded_inference"),
]


@pytest.fixture(scope="module")
def units() -> UnitKernels:
    torch.zeros(1, device=CUDA)  # creates the CUDA context that the driver's calls need
    loaded = load_kernels(CUDA)
    assert loaded is not None
    return loaded


@pytest.fixture(scope="module")
def products() -> CodecProducts:
    torch.zeros(1, device=CUDA)
    loaded = load_products(CUDA)
    assert loaded is not None
    return loaded


def random_half(*shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape, device=CUDA) * scale).half()


def unwritten(x: Tensor, num_columns: int) -> Tensor:
    return torch.full((*x.shape[:2], num_columns), torch.nan, device=CUDA, dtype=torch.half)


class Layer:
    """A random convolution with its slots' history, computed by the kernels for few rows."""

    def __init__(self, num_slots: int, taps: int, columns: int, size: int, dilation: int) -> None:
        histories, reach = Histories(), (taps - 1) * dilation
        number = histories.add(reach * size, torch.half) if reach else -1
        histories.allocate(num_slots + 1, CUDA)
        if reach:
            histories.view(number).copy_(random_half(num_slots + 1, reach * size))
        self.history = histories.view(number).clone() if reach else None
        slots = torch.randperm(num_slots + 1, device=CUDA)[:num_slots].contiguous()
        self.past = Past(histories, slots, *[torch.zeros(0)] * 2)
        numbers = torch.randn(3, columns, device=CUDA)
        self.parameters = ColumnParameters(numbers[0], *numbers[1:].abs())
        snake = Activation(
            torch.half, SNAKE.value, self.parameters.frequency, self.parameters.inverse_gain
        )
        weight = random_half(taps, columns, size, scale=(taps * size) ** -0.5)
        bias = self.parameters.bias
        self.few = Product(weight, bias, dilation, number, activation=snake)

    def joined(self, x: Tensor) -> Tensor:
        """x after the past of its slots."""
        if self.history is None:
            return x
        size = x.shape[2]
        past = self.history.view(len(self.history), -1, size)[self.past.slots]
        return torch.cat((past, x), dim=1)


@pytest.mark.parametrize("size", [96, 192])
@pytest.mark.parametrize(
    ("num_slots", "length", "dilation"),
    [(1, 1, 1), (2, 128, 3), (3, 300, 9), (40, 640, 9), (600, 33, 1)],
)
@pytest.mark.parametrize("is_last", [True, False])
def test_wide_unit_equals_two_triton_products_to_the_bit(
    units: UnitKernels,
    size: int,
    num_slots: int,
    length: int,
    dilation: int,
    is_last: bool,
) -> None:
    first, second = Layer(num_slots, 7, size, size, dilation), Layer(num_slots, 1, size, size, 1)
    wide = WideUnit.pack(
        units, first.few.weight, second.few.weight,
        first.parameters, second.parameters, dilation,
    )  # fmt: skip
    assert wide is not None
    x, residual = random_half(num_slots, length, size), random_half(num_slots, length, size)
    out, active = unwritten(x, size), unwritten(x, size)
    wide.run(first.joined(x), Outputs(residual, None if is_last else out, active))
    hidden = first.few.activate(x, first.past)
    expected = second.few.run_both(hidden, second.past, residual=residual)
    assert is_last or torch.equal(out, expected[0])
    assert torch.equal(active, expected[1])


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
@pytest.mark.parametrize(
    ("num_slots", "length", "taps", "dilation"),
    [(1, 1, 2, 1), (2, 128, 1, 1), (3, 300, 7, 3), (40, 160, 7, 9), (300, 36, 2, 1)],
)
@pytest.mark.parametrize("has_residual", [True, False])
def test_wide_product_equals_the_triton_product_to_the_bit(
    products: CodecProducts,
    monkeypatch: pytest.MonkeyPatch,
    shape: Shape,
    num_slots: int,
    length: int,
    taps: int,
    dilation: int,
    has_residual: bool,
) -> None:
    num_columns = 2 * shape.columns
    layer = Layer(num_slots, taps, num_columns, 192, dilation)
    wide = WideProduct.pack(products, layer.few.weight, layer.parameters, dilation)
    assert wide is not None
    monkeypatch.setattr(WideProduct, "_shape", lambda *_: shape)
    x = random_half(num_slots, length, 192)
    residual = random_half(num_slots, length, num_columns) if has_residual else None
    out, active = unwritten(x, num_columns), unwritten(x, num_columns)
    wide.run(layer.joined(x), Outputs(residual, out, active))
    expected = layer.few.run_both(x, layer.past, residual=residual)
    assert torch.equal(out, expected[0])
    assert torch.equal(active, expected[1])


@pytest.mark.parametrize("has_room", [True, False])
@pytest.mark.parametrize(("length", "dilation"), [(160, 3), (16, 9)])
def test_wide_product_of_a_layer_updates_the_history(
    products: CodecProducts, length: int, dilation: int, has_room: bool
) -> None:
    layer = Layer(300, 7, 384, 192, dilation)
    few, past = layer.few, layer.past
    wide = replace(few, wide=WideProduct.pack(products, few.weight, layer.parameters, dilation))
    assert wide.room(300, length)
    reach = wide.reach if has_room else 0
    x = random_half(300, reach + length, 192)[:, reach:]
    assert layer.history is not None
    found = wide.run_both(x, past)
    kept = past.histories.view(few.history).clone()
    past.histories.view(few.history).copy_(layer.history)
    expected = few.run_both(x.contiguous(), past)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(kept, past.histories.view(few.history))


def test_released_codec_samples_do_not_depend_on_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The released shape: 64 streams use the kernels for many rows, a single stream does not."""
    _, config = load_configs("0.6B-CustomVoice")
    codec = random_module(Codec, config, CUDA, torch.float32)
    codec.fold()
    many = FusedDecoder(codec, 65, is_half=True)
    assert all(unit.wide is not None for block in many._blocks[2:] for unit in block.units)
    monkeypatch.setattr(codec_fused, "MIN_WIDE_SLOTS", 1_000)
    few = FusedDecoder(codec, 65, is_half=True)
    rows = torch.arange(64, device=CUDA)
    codes = torch.randint(2048, (64, 18, 16), device=CUDA)
    alone = torch.cat([few.decode(rows[:1], part)[0] for part in codes[:1].split(1, dim=1)])
    for num_slots, sizes in ((64, [8, 8, 1, 1]), (32, [16, 2]), (64, [1, 1, 8, 8])):
        many.reset(rows)
        parts = codes[:num_slots].split(sizes, dim=1)
        found = torch.cat([many.decode(rows[:num_slots], part)[0] for part in parts])
        assert torch.equal(found, alone)
