"""Packed weights and arguments of the codec's kernels for Hopper GPUs; the kernels need a GPU."""

from __future__ import annotations

import ctypes
import re
from typing import cast

import pytest
import torch
from torch import Tensor

from vivace.backends.cuda_graph import codec_wgmma
from vivace.backends.cuda_graph.codec_wgmma import (
    ColumnParameters,
    ConvolutionArguments,
    UnitArguments,
    WgmmaKernels,
    WideConvolution,
    WideUnit,
    kernel_source,
    load_kernels,
)


class FewProcessors:
    num_processors = 4


KERNELS = cast("WgmmaKernels", FewProcessors())


def parameters(num_columns: int) -> ColumnParameters:
    return ColumnParameters(*torch.randn(3, num_columns))


def thread_columns(tile: int) -> list[list[int]]:
    """Columns that a wgmma gives the four threads of a row, in the order of their registers."""
    groups = range(0, tile, 8)
    return [[group + 2 * t + odd for group in groups for odd in (0, 1)] for t in range(4)]


def unpacked(block: Tensor) -> Tensor:
    """[channels / 8, columns, 8] to [columns, channels]."""
    return block.transpose(0, 1).flatten(1)


@pytest.mark.parametrize(("num_columns", "tile"), [(384, 192), (288, 96), (96, 96)])
def test_packed_convolution_gives_threads_neighbouring_columns(num_columns: int, tile: int) -> None:
    weight = torch.randn(3, num_columns, 128).half()
    layer = WideConvolution.pack(KERNELS, weight, parameters(num_columns), 2)
    assert layer is not None
    assert layer.tile == tile
    assert layer.weight.shape == (num_columns // tile, 3, 4, 4, tile, 8)
    for number, tap, block in ((0, 0, 0), (num_columns // tile - 1, 2, 3)):
        found = unpacked(layer.weight[number, tap, block])
        columns = weight[tap, number * tile : (number + 1) * tile, 32 * block : 32 * (block + 1)]
        for t, places in enumerate(thread_columns(tile)):
            for first in range(0, len(places), 8):
                start = 4 * first + 8 * t  # eight neighbours of every 32 columns
                assert torch.equal(found[places[first : first + 8]], columns[start : start + 8])


@pytest.mark.parametrize(("size", "depth"), [(96, 96), (192, 64)])
def test_packed_unit_keeps_hidden_channels_in_order(size: int, depth: int) -> None:
    first, second = torch.randn(7, size, size).half(), torch.randn(1, size, size).half()
    unit = WideUnit.pack(KERNELS, first, second, parameters(size), parameters(size), 9)
    assert unit is not None
    assert unit.weight.shape == (8, size // depth, depth // 8, size, 8)
    for tap in range(7):
        blocks = [unpacked(block) for block in unit.weight[tap]]
        assert torch.equal(torch.cat(blocks, dim=1), first[tap])
    last = torch.cat([unpacked(block) for block in unit.weight[7]], dim=1)
    assert torch.equal(last[thread_columns(size)[1][:8]], second[0, 8:16])


@pytest.mark.parametrize(
    ("shape", "has_parameters"), [((7, 100, 64), True), ((7, 192, 80), True), ((2, 192, 64), False)]
)
def test_unsupported_convolutions_are_not_packed(
    shape: tuple[int, ...], has_parameters: bool
) -> None:
    given = parameters(shape[1]) if has_parameters else None
    assert WideConvolution.pack(KERNELS, torch.zeros(shape).half(), given, 1) is None
    assert WideConvolution.pack(None, torch.zeros(7, 192, 64).half(), parameters(192), 1) is None


@pytest.mark.parametrize(("taps", "size", "dilation"), [(5, 96, 1), (7, 64, 1), (7, 192, 10)])
def test_unsupported_units_are_not_packed(taps: int, size: int, dilation: int) -> None:
    weights = torch.zeros(taps, size, size).half(), torch.zeros(1, size, size).half()
    assert WideUnit.pack(KERNELS, *weights, parameters(size), parameters(size), dilation) is None


def test_wide_kernels_need_a_tile_for_every_multiprocessor() -> None:
    weight = torch.zeros(7, 384, 384).half()
    layer = WideConvolution.pack(KERNELS, weight, parameters(384), 1)
    assert layer is not None
    assert not layer.is_worthwhile(511)
    assert layer.is_worthwhile(512)
    first, second = torch.zeros(7, 96, 96).half(), torch.zeros(1, 96, 96).half()
    unit = WideUnit.pack(KERNELS, first, second, parameters(96), parameters(96), 1)
    assert unit is not None
    assert not unit.is_worthwhile(3, 64)
    assert unit.is_worthwhile(4, 64)


def test_parameters_are_repeated_for_every_output_step() -> None:
    bias, frequency, gain = torch.arange(3.0), torch.arange(3.0)[:, None] + 1, torch.ones(3)
    spread = ColumnParameters.spread(6, bias, frequency, gain)
    assert spread is not None
    assert spread.bias.tolist() == [0, 1, 2, 0, 1, 2]
    assert spread.frequency.tolist() == [1, 2, 3, 1, 2, 3]
    assert ColumnParameters.spread(6, bias, None, gain) is None


@pytest.mark.parametrize(
    ("name", "arguments"), [("Convolution", ConvolutionArguments), ("Unit", UnitArguments)]
)
def test_arguments_equal_the_struct_of_the_source(
    name: str, arguments: type[ctypes.Structure]
) -> None:
    body = kernel_source().partition(f"struct {name} {{")[2].partition("\n};")[0]
    body = re.sub(r"//.*", "", body)
    declared = [
        member.strip(" *")
        for kind, names in re.findall(r"(?:const )?(\w+\*?) ([\w*, ]+);", body)
        for member in names.split(",")
        if kind
    ]
    assert declared == [field[0] for field in arguments._fields_]


def test_source_has_the_products_of_every_tile() -> None:
    source = kernel_source()
    for columns in codec_wgmma.TILES:
        assert f"m64n{columns}k16" in source
        assert f"convolution_{columns}(" in source


def test_kernels_are_not_loaded_without_a_hopper_gpu() -> None:
    assert load_kernels(torch.device("cpu")) is None
