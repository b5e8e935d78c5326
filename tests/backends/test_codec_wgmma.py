"""Packed weights and arguments of the codec's kernels for Hopper GPUs; the kernels need a GPU."""

from __future__ import annotations

import re
from typing import cast

import pytest
import torch
from torch import Tensor

from vivace.backends.cuda_graph import codec_wgmma
from vivace.backends.cuda_graph.codec_wgmma import (
    ColumnParameters,
    UnitArguments,
    WgmmaKernels,
    WideUnit,
    kernel_source,
    load_kernels,
)
from vivace.errors import BackendUnavailableError


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


@pytest.mark.parametrize(("size", "depth"), [(96, 96), (192, 64)])
def test_packed_unit_keeps_hidden_channels_and_groups_columns_by_thread(
    size: int, depth: int
) -> None:
    first, second = torch.randn(7, size, size).half(), torch.randn(1, size, size).half()
    unit = WideUnit.pack(KERNELS, first, second, parameters(size), parameters(size), 9)
    assert unit is not None
    assert unit.weight.shape == (8, size // depth, depth // 8, size, 8)
    for tap in range(7):
        blocks = [unpacked(block) for block in unit.weight[tap]]
        assert torch.equal(torch.cat(blocks, dim=1), first[tap])
    last = torch.cat([unpacked(block) for block in unit.weight[7]], dim=1)
    for t, places in enumerate(thread_columns(size)):
        for first_place in range(0, len(places), 8):
            start = 4 * first_place + 8 * t  # eight neighbours of every 32 columns
            found = last[places[first_place : first_place + 8]]
            assert torch.equal(found, second[0, start : start + 8])


@pytest.mark.parametrize(("taps", "size", "dilation"), [(5, 96, 1), (7, 64, 1), (7, 192, 10)])
def test_unsupported_units_are_not_packed(taps: int, size: int, dilation: int) -> None:
    weights = torch.zeros(taps, size, size).half(), torch.zeros(1, size, size).half()
    assert WideUnit.pack(KERNELS, *weights, parameters(size), parameters(size), dilation) is None


def test_units_without_kernels_or_parameters_are_not_packed() -> None:
    weights = torch.zeros(7, 96, 96).half(), torch.zeros(1, 96, 96).half()
    assert WideUnit.pack(KERNELS, *weights, parameters(96), parameters(96), 1) is not None
    assert WideUnit.pack(None, *weights, parameters(96), parameters(96), 1) is None
    assert WideUnit.pack(KERNELS, *weights, None, parameters(96), 1) is None
    assert WideUnit.pack(KERNELS, *weights, parameters(96), None, 1) is None


def test_wide_units_need_a_tile_for_every_multiprocessor() -> None:
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


def test_arguments_equal_the_struct_of_the_source() -> None:
    body = kernel_source().partition("struct Unit {")[2].partition("\n};")[0]
    body = re.sub(r"//.*", "", body)
    declared = [
        member.strip(" *")
        for kind, names in re.findall(r"(?:const )?(\w+\*?) ([\w*, ]+);", body)
        for member in names.split(",")
        if kind
    ]
    assert declared == [field[0] for field in UnitArguments._fields_]


def test_source_has_the_products_of_every_kernel() -> None:
    source = kernel_source()
    for size, shape in codec_wgmma.SHAPES.items():
        assert f"m64n{size}k16" in source
        assert f"CHANNELS = {size}, ROWS = {shape.rows}," in source
        assert f"unit_{size}(" in source


def test_kernels_are_not_loaded_without_a_hopper_gpu() -> None:
    assert load_kernels(torch.device("cpu")) is None


def test_failing_kernels_are_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(device: torch.device) -> WgmmaKernels:
        raise BackendUnavailableError("the kernel does not compile")

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(codec_wgmma, "WgmmaKernels", fail)
    assert load_kernels(torch.device("cuda")) is None
    assert "does not compile" in caplog.text


def test_comparison_rejects_wrong_and_missing_numbers() -> None:
    expected = torch.randn(100)
    compare(expected.half(), expected)
    for wrong in (expected * 1.1, torch.full_like(expected, torch.nan)):
        with pytest.raises(BackendUnavailableError, match="off by"):
            compare(wrong, expected)
