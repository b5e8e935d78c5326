"""Launches the codec's residual units of many rows on Hopper GPUs; see codec_wgmma.cu."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from ctypes import c_int, c_int64, c_uint64
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from vivace.backends.cuda_graph.codec_operands import (
    ColumnParameters,
    Columns,
    Outputs,
    Rows,
    address_of,
    column_order,
    compare,
    layer_source,
)
from vivace.backends.cuda_graph.tiles import num_multiprocessors
from vivace.backends.megakernel import driver
from vivace.backends.megakernel.nvrtc import compile_source
from vivace.errors import BackendUnavailableError

TAPS, MAX_DILATION = 7, 9

log = logging.getLogger(__name__)


class UnitArguments(ctypes.Structure):
    _fields_ = [
        *((name, c_uint64) for name in ("x", "history", "slots", "weight")),
        ("hidden", Columns),
        ("columns", Columns),
        ("rows", Rows),
        ("history_stride", c_int64),
        ("active_stride", c_int64),
        *((name, c_int) for name in ("num_streams", "length", "dilation")),
    ]


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of a layer with their past."""

    x: Tensor  # float16 [B, T, channels], contiguous
    history: Tensor  # float16 [slots, at least reach * channels]
    slots: Tensor  # int64 [B]


class WgmmaKernels:
    """The compiled kernels of a device."""

    def __init__(self, device: torch.device) -> None:
        code = compile_source(kernel_source(), "sm_90a", [])
        self._module = driver.Module(code)
        self.num_processors = num_multiprocessors(device)
        self._shared = dict(zip(SHAPES, self._module.numbers("shared_bytes"), strict=True))
        self._functions = {size: self._module.function(f"unit_{size}") for size in SHAPES}
        for size, function in self._functions.items():
            driver.allow_shared(function, self._shared[size])

    def launch(self, num_channels: int, request: UnitArguments) -> None:
        function, shared = self._functions[num_channels], self._shared[num_channels]
        num_threads = SHAPES[num_channels].num_threads
        driver.launch(function, (self.num_processors, 1), num_threads, shared, request)


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a `unit_*` kernel."""

    rows: int  # of a tile
    depth: int  # channels of a step
    num_threads: int


SHAPES: Final = {192: Shape(128, 64, 384), 96: Shape(64, 96, 384)}  # by channels


@dataclass(frozen=True, slots=True)
class WideUnit:
    """A residual unit of 96 or 192 channels."""

    kernels: WgmmaKernels
    weight: Tensor  # packed: the convolution's, then the linear layer's
    hidden: ColumnParameters
    parameters: ColumnParameters
    dilation: int

    @classmethod
    def pack(
        cls,
        kernels: WgmmaKernels | None,
        first: Tensor,  # float16 [taps, channels, channels]
        second: Tensor,  # float16 [1, channels, channels]
        hidden: ColumnParameters | None,
        parameters: ColumnParameters | None,
        dilation: int,
    ) -> WideUnit | None:
        """None where the kernels do not support the unit."""
        taps, num_channels, in_size = first.shape
        shape = SHAPES.get(num_channels)
        if kernels is None or hidden is None or parameters is None or shape is None:
            return None
        if in_size != num_channels or taps != TAPS or dilation > MAX_DILATION:
            return None
        depth = shape.depth
        packed = torch.cat([first, second[:, column_order(num_channels, second.device)]])
        packed = packed.view(taps + 1, num_channels, num_channels // depth, depth // 8, 8)
        packed = packed.permute(0, 2, 3, 1, 4).contiguous()
        return cls(kernels, packed, hidden, parameters, dilation)

    def is_worthwhile(self, num_streams: int, length: int) -> bool:
        """Whether there is a tile for every multiprocessor."""
        num_tiles = num_streams * (length // SHAPES[len(self.parameters.bias)].rows)
        return num_tiles >= self.kernels.num_processors

    def run(self, inputs: Inputs, outputs: Outputs) -> None:
        batch, length, size = inputs.x.shape
        request = UnitArguments(
            *_addresses(inputs), address_of(self.weight), self.hidden.columns,
            self.parameters.columns, outputs.rows, inputs.history.stride(0),
            outputs.active.stride(0), batch, length, self.dilation,
        )  # fmt: skip
        self.kernels.launch(size, request)


def load_kernels(device: torch.device) -> WgmmaKernels | None:
    """The kernels if the device is a Hopper GPU on which they compile and compute correctly."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != (9, 0):
        return None
    try:
        kernels = WgmmaKernels(device)
        _check(kernels, device)
    except BackendUnavailableError as error:
        log.warning("the codec of many streams runs with Triton's products instead: %s", error)
        return None
    return kernels


def kernel_source(columns: Sequence[int] = tuple(SHAPES)) -> str:
    """The source with products of these numbers of columns."""
    return layer_source(Path(__file__).with_suffix(".cu"), columns)


def _check(kernels: WgmmaKernels, device: torch.device) -> None:
    """Compare the kernels with PyTorch on random numbers."""
    generator = torch.Generator(device).manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, generator=generator)

    slots, reach = torch.tensor([1, 0], device=device), TAPS - 1
    for size in SHAPES:
        x, history = draw(2, 300, size).half(), draw(2, reach * size).half()
        residual = draw(2, 300, size).half()
        first, second = (draw(taps, size, size).mul(size**-0.5).half() for taps in (TAPS, 1))
        parameters = ColumnParameters(draw(size), draw(size).abs(), draw(size).abs())
        unit = WideUnit.pack(kernels, first, second, parameters, parameters, 1)
        assert unit is not None
        out, active = torch.empty_like(x), torch.empty_like(x)
        unit.run(Inputs(x, history, slots), Outputs(residual, out, active))
        joined = torch.cat((history.view(2, reach, size)[slots], x), dim=1)
        hidden = parameters.activate(parameters.bias + _convolved(joined, first)).half()
        expected = parameters.bias + _convolved(hidden, second) + residual
        compare(out, expected)
        compare(active, parameters.activate(expected))


def _convolved(x: Tensor, weight: Tensor) -> Tensor:
    """[B, T, in] and [taps, out, in] to [B, T - taps + 1, out], in float32."""
    filters = weight.float().permute(1, 2, 0)
    return F.conv1d(x.float().transpose(1, 2), filters).transpose(1, 2)


def _addresses(inputs: Inputs) -> tuple[int, ...]:
    return tuple(address_of(each) for each in (inputs.x, inputs.history, inputs.slots))
