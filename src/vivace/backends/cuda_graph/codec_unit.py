"""Launches the codec's units of 96 channels and many rows on Hopper GPUs; see codec_unit.cu."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from ctypes import c_int, c_uint64
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vivace.backends.cuda_graph.codec_operands import (
    ColumnParameters,
    Columns,
    Outputs,
    Rows,
    column_order,
    compare_unit,
    layer_source,
    random_unit,
)
from vivace.backends.cuda_graph.tiles import num_multiprocessors
from vivace.backends.megakernel import driver
from vivace.backends.megakernel.nvrtc import compile_source
from vivace.errors import BackendUnavailableError

CHANNELS, TAPS, MAX_DILATION = 96, 7, 9
TILE_ROWS = 64
NUM_THREADS = 384

log = logging.getLogger(__name__)


class UnitArguments(ctypes.Structure):
    """`Unit` of codec_unit.cu."""

    _fields_ = [
        ("x", c_uint64),
        ("weight", c_uint64),
        ("hidden", Columns),
        ("columns", Columns),
        ("rows", Rows),
        ("dilation", c_int),
    ]


class UnitKernel:
    """The compiled kernel of a device."""

    def __init__(self, device: torch.device) -> None:
        self._module = driver.Module(compile_source(kernel_source(), "sm_90a", []))
        self.num_processors = num_multiprocessors(device)
        [self._shared] = self._module.numbers("shared_bytes")
        self._function = self._module.function(f"unit_{CHANNELS}")
        driver.allow_shared(self._function, self._shared)

    def launch(self, request: UnitArguments) -> None:
        grid = (self.num_processors, 1)
        driver.launch(self._function, grid, NUM_THREADS, self._shared, request)


@dataclass(frozen=True, slots=True)
class NarrowUnit:
    """A residual unit of 96 channels, whose weights fit in shared memory."""

    kernel: UnitKernel
    weight: Tensor  # packed: the convolution's, then the linear layer's
    hidden: ColumnParameters
    parameters: ColumnParameters
    dilation: int

    @classmethod
    def pack(
        cls,
        kernel: UnitKernel | None,
        first: Tensor,  # float16 [taps, channels, channels]
        second: Tensor,  # float16 [1, channels, channels]
        hidden: ColumnParameters | None,
        parameters: ColumnParameters | None,
        dilation: int,
    ) -> NarrowUnit | None:
        """None where the kernel does not support the unit."""
        if kernel is None or hidden is None or parameters is None:
            return None
        if first.shape != (TAPS, CHANNELS, CHANNELS) or dilation > MAX_DILATION:
            return None
        packed = torch.cat([first, second[:, column_order(CHANNELS, second.device)]])
        packed = packed.view(TAPS + 1, CHANNELS, CHANNELS // 8, 8).transpose(1, 2).contiguous()
        return cls(kernel, packed, hidden, parameters, dilation)

    def is_worthwhile(self, num_streams: int, length: int) -> bool:
        """Whether there is a tile for every multiprocessor."""
        return num_streams * (length // TILE_ROWS) >= self.kernel.num_processors

    def run(self, x: Tensor, outputs: Outputs) -> None:
        """See `WideLayer.run`."""
        request = UnitArguments(
            x.data_ptr(), self.weight.data_ptr(), self.hidden.columns, self.parameters.columns,
            outputs.rows, self.dilation,
        )  # fmt: skip
        self.kernel.launch(request)


def load_kernel(device: torch.device) -> UnitKernel | None:
    """The kernel if the device is a Hopper GPU on which it compiles and computes correctly."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != (9, 0):
        return None
    try:
        kernel = UnitKernel(device)
        _check(kernel, device)
    except BackendUnavailableError as error:
        log.warning("units of many streams run with Triton's products instead: %s", error)
        return None
    return kernel


def kernel_source(columns: Sequence[int] = (CHANNELS,)) -> str:
    """The source with products of these numbers of columns."""
    return layer_source(Path(__file__).with_suffix(".cu"), columns)


def _check(kernel: UnitKernel, device: torch.device) -> None:
    """Compare the kernel with PyTorch on random numbers."""
    first, second, parameters = random_unit(TAPS, CHANNELS, device)
    unit = NarrowUnit.pack(kernel, first, second, parameters, parameters, 1)
    assert unit is not None
    compare_unit(unit, first, second, parameters)
