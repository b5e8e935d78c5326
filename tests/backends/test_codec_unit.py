"""Packed weights and arguments of the codec's kernels for Hopper GPUs; the kernels need a GPU."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from types import ModuleType
from typing import cast

import pytest
import torch
from torch import Tensor

from vivace.backends.cuda_graph.codec import product as codec_product
from vivace.backends.cuda_graph.codec import unit as codec_unit
from vivace.backends.cuda_graph.codec.operands import (
    ColumnParameters,
    Columns,
    Processors,
    Rows,
)
from vivace.backends.cuda_graph.codec.product import (
    SHAPES,
    CodecProducts,
    ProductArguments,
    WideProduct,
)
from vivace.backends.cuda_graph.codec.unit import UnitArguments, UnitKernels, WideUnit
from vivace.backends.cuda_graph.hopper.loading import compare
from vivace.errors import BackendUnavailableError


class FewProcessors:
    processors = Processors(4)


UNITS = cast("UnitKernels", FewProcessors())
PRODUCTS = cast("CodecProducts", FewProcessors())
CPU = torch.device("cpu")


def parameters(num_columns: int) -> ColumnParameters:
    return ColumnParameters(*torch.randn(3, num_columns))


def thread_columns(tile: int) -> list[list[int]]:
    """Columns that a wgmma gives the four threads of a row, in the order of their registers."""
    groups = range(0, tile, 8)
    return [[group + 2 * t + odd for group in groups for odd in (0, 1)] for t in range(4)]


def check_order(packed: Tensor, weight: Tensor) -> None:
    """A thread's results are eight neighbouring columns of every 32."""
    for t, places in enumerate(thread_columns(len(weight))):
        for first in range(0, len(places), 8):
            start = 4 * first + 8 * t
            assert torch.equal(packed[places[first : first + 8]], weight[start : start + 8])


def random_weights(taps: int, size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(taps, size, size).half(), torch.randn(1, size, size).half()


@pytest.mark.parametrize(("size", "depth"), [(96, 96), (192, 64)])
def test_packed_unit_has_eight_channels_of_all_columns_together(size: int, depth: int) -> None:
    first, second = random_weights(7, size)
    unit = WideUnit.pack(UNITS, first, second, parameters(size), parameters(size), 9)
    assert unit is not None
    assert unit.weight.shape == (8, size // depth, depth // 8, size, 8)
    taps = unit.weight.flatten(1, 2).transpose(1, 2).flatten(2)
    assert torch.equal(taps[:7], first)
    check_order(taps[7], second[0])


def test_packed_product_orders_the_columns_of_every_tap() -> None:
    weight = torch.randn(2, 288, 192).half()
    product = WideProduct.pack(PRODUCTS, weight, parameters(288), 1)
    assert product is not None
    for packed, tap in zip(product.weight, weight, strict=True):
        check_order(packed, tap)


@pytest.mark.parametrize(("taps", "size", "dilation"), [(5, 96, 1), (7, 64, 1), (7, 192, 10)])
def test_unsupported_units_are_not_packed(taps: int, size: int, dilation: int) -> None:
    given = (*random_weights(taps, size), parameters(size), parameters(size), dilation)
    assert WideUnit.pack(UNITS, *given) is None


@pytest.mark.parametrize("size", [(1, 96, 32), (1, 48, 64), (1, 160, 64)], ids=str)
def test_unsupported_products_are_not_packed(size: tuple[int, int, int]) -> None:
    weight = torch.zeros(size).half()
    assert WideProduct.pack(PRODUCTS, weight, parameters(size[1]), 1) is None


def test_layers_without_kernels_or_parameters_are_not_packed() -> None:
    first, second = random_weights(7, 96)
    some = parameters(96)
    assert WideUnit.pack(UNITS, first, second, some, some, 1) is not None
    assert WideUnit.pack(None, first, second, some, some, 1) is None
    assert WideUnit.pack(UNITS, first, second, None, some, 1) is None
    assert WideUnit.pack(UNITS, first, second, some, None, 1) is None
    weight = torch.zeros(1, 96, 64).half()
    assert WideProduct.pack(PRODUCTS, weight, some, 1) is not None
    assert WideProduct.pack(None, weight, some, 1) is None
    assert WideProduct.pack(PRODUCTS, weight, None, 1) is None


@pytest.mark.parametrize(("size", "rows"), [(96, 64), (192, 128)])
def test_units_need_a_tile_for_every_multiprocessor(size: int, rows: int) -> None:
    unit = WideUnit.pack(UNITS, *random_weights(7, size), parameters(size), parameters(size), 1)
    assert unit is not None
    assert not unit.is_worthwhile(3, rows)
    assert unit.is_worthwhile(4, rows)


def test_products_count_tiles_that_span_streams() -> None:
    """Four times of 32 streams are a tile; four times of one stream are one, too."""
    product = WideProduct.pack(PRODUCTS, torch.zeros(1, 96, 64).half(), parameters(96), 1)
    assert product is not None
    assert not product.is_worthwhile(32, 4)
    assert product.is_worthwhile(64, 4)
    assert not product.is_worthwhile(1, 128)
    assert product.is_worthwhile(1, 256)


@pytest.mark.parametrize(
    ("taps", "num_columns", "num_channels", "num_row_tiles", "expected"),
    [
        (7, 768, 768, 128, {"product_256", "product_192"}),
        (7, 384, 384, 640, {"product_192", "paired_128"}),
        (1, 384, 384, 640, {"paired_128", "paired_96"}),
        (2, 288, 192, 2560, {"paired_96"}),
        (7, 384, 384, 80, {"paired_128"}),
    ],
)
def test_chosen_kernel_is_the_fastest_one_measured_on_an_h200(
    taps: int, num_columns: int, num_channels: int, num_row_tiles: int, expected: set[str]
) -> None:
    """The expected kernels differ by 5 % at most."""
    kernels = cast("CodecProducts", type("Kernels", (), {"processors": Processors(132)})())
    weight = torch.empty(taps, num_columns, num_channels, dtype=torch.half)
    product = WideProduct(kernels, weight, parameters(1), 1)
    assert product._shape(num_row_tiles).name in expected


def test_long_kernels_leave_multiprocessors_to_frames() -> None:
    processors = Processors(132, 0.5)
    assert processors.num_blocks(20) == 20
    assert processors.num_blocks(300) == 132
    assert processors.num_blocks(1000) == 66
    assert processors.num_blocks(1000, 2) == 264
    assert processors.num_blocks(2000, 2) == 132
    assert Processors(132).num_blocks(2000) == 132
    assert Processors(1, 0.5).num_blocks(8) == 1


def test_parameters_are_repeated_for_every_output_step() -> None:
    bias, frequency, gain = torch.arange(3.0), torch.arange(3.0)[:, None] + 1, torch.ones(3)
    spread = ColumnParameters.spread(6, bias, frequency, gain)
    assert spread is not None
    assert spread.bias.tolist() == [0, 1, 2, 0, 1, 2]
    assert spread.frequency.tolist() == [1, 2, 3, 1, 2, 3]
    assert ColumnParameters.spread(6, bias, None, gain) is None


@pytest.mark.parametrize(
    ("module", "name", "arguments"),
    [
        (codec_unit, "Unit", UnitArguments),
        (codec_unit, "Rows", Rows),
        (codec_unit, "Columns", Columns),
        (codec_product, "Product", ProductArguments),
    ],
)
def test_arguments_equal_the_struct_of_the_source(
    module: ModuleType, name: str, arguments: type[ctypes.Structure]
) -> None:
    body = module.kernel_source().partition(f"struct {name} {{")[2].partition("\n};")[0]
    body = re.sub(r"//.*|DEVICE.*", "", body)
    declared = [
        member.strip(" *")
        for kind, names in re.findall(r"(?:const )?(\w+\*?) ([\w*, ]+);", body)
        for member in names.split(",")
        if kind
    ]
    named = [field[0] for field in arguments._fields_]
    assert declared == [each for each in named if each != "padding"]


def test_arguments_of_a_product_fill_its_aligned_struct() -> None:
    assert ctypes.sizeof(ProductArguments) % 64 == 0


def test_source_has_every_kernel_and_its_products() -> None:
    source = codec_product.kernel_source()
    for shape in SHAPES:
        assert f"m64n{shape.columns}k16" in source
        blocks = 1 if shape.is_alone else 2
        threads = f"MULTIPLIERS + {128 if shape.is_alone else 32}"
        sizes = f"{blocks}, {shape.columns}, {shape.num_stages}"
        assert f"KERNEL({shape.name}, {threads}, {sizes}" in source
    source = codec_unit.kernel_source()
    for size, unit in codec_unit.SHAPES.items():
        assert f"m64n{size}k16" in source
        assert f"CHANNELS = {size}, ROWS = {unit.rows}," in source
        assert f"unit_{size}(" in source


def test_kernels_are_not_loaded_without_a_hopper_gpu() -> None:
    assert codec_unit.load_kernels(CPU) is None
    assert codec_product.load_products(CPU) is None


@pytest.mark.parametrize(
    ("module", "name", "load"),
    [
        (codec_unit, "UnitKernels", codec_unit.load_kernels),
        (codec_product, "CodecProducts", codec_product.load_products),
    ],
)
def test_failing_kernels_are_not_used(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    module: ModuleType,
    name: str,
    load: Callable[[torch.device], object],
) -> None:
    def fail(processors: Processors) -> None:
        raise BackendUnavailableError("the kernel does not compile")

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(module, "num_multiprocessors", lambda device: 132)
    monkeypatch.setattr(module, name, fail)
    assert load(torch.device("cuda")) is None
    assert "does not compile" in caplog.text


def test_comparison_rejects_wrong_and_missing_numbers() -> None:
    expected = torch.randn(100)
    compare(expected.half(), expected)
    for wrong in (expected * 1.1, torch.full_like(expected, torch.nan)):
        with pytest.raises(BackendUnavailableError, match="off by"):
            compare(wrong, expected)
