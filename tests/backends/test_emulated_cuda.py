"""The CUDA kernels of attention and of the codec's residual units, emulated on a CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_uint
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.cuda_emulator import EmulatedKernels, KernelError, find_compiler
from vivace.backends.cuda_graph import attention_cuda, codec_wgmma
from vivace.backends.cuda_graph.attention_cuda import CudaAttention
from vivace.backends.cuda_graph.codec_wgmma import (
    ColumnParameters,
    Inputs,
    Outputs,
    WgmmaKernels,
    WideUnit,
)
from vivace.backends.cuda_graph.wgmma_source import complete_source

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")

EPS = 1e-6
CPU = torch.device("cpu")


def distance(found: Tensor, expected: Tensor) -> float:
    """Relative distance; infinite if a number is missing."""
    error = float((found.float() - expected).norm() / expected.norm())
    return error if error == error else float("inf")


class EmulatedDriver:
    """The functions of megakernel/driver.py that launch kernels, for emulated ones."""

    def __init__(self, kernels: EmulatedKernels, numbers: list[int] | None = None) -> None:
        self._kernels, self._numbers = kernels, numbers
        self.seed = 0

    def Module(self, code: bytes) -> EmulatedDriver:
        return self

    def function(self, name: str) -> str:
        return name

    def numbers(self, name: str) -> list[int]:
        assert self._numbers is not None
        return self._numbers

    def allow_shared(self, function: str, num_bytes: int) -> None:
        pass

    def launch(self, function: str, grid: tuple[int, int], *arguments: Any) -> None:
        self.launch_dependent(function, (*grid, 1), *arguments)

    def launch_dependent(
        self,
        function: str,
        grid: tuple[int, int, int],
        num_threads: int,
        shared: int,
        request: ctypes.Structure,
    ) -> None:
        self._kernels.launch(function, grid, num_threads, request, self.seed)


# -- attention ------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[(128, 2, 2), (64, 3, 1)], ids=str)
def attention(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[tuple[int, int, int], EmulatedDriver]:
    """Size of a head, query heads of a KV head, KV heads; the driver that runs their kernels."""
    head_dim, group, num_kv = request.param
    source = Path(attention_cuda.__file__).with_suffix(".cu").read_text()
    kernels = dict.fromkeys(attention_cuda.FRAME_KERNELS, "FrameRequest")
    kernels["attend_slots"] = "SlotRequest"
    defines = [f"HEAD_DIM={head_dim}", f"GROUP={group}", f"NUM_KV={num_kv}", "BFLOAT16"]
    built = EmulatedKernels(source, kernels, tmp_path_factory.mktemp("attention"), defines)
    return request.param, EmulatedDriver(built)


class Case:
    """Random norms, rope tables and queries, keys and values of new tokens."""

    def __init__(self, size: tuple[int, int, int], num_rows: int) -> None:
        torch.manual_seed(0)
        self.head_dim, self.group, self.num_kv = size
        width = (self.group + 2) * self.num_kv * self.head_dim
        self.qkv = torch.randn(num_rows, width).bfloat16()
        self.norms = [torch.randn(self.head_dim).bfloat16() for _ in range(2)]
        angles = torch.randn(600, self.head_dim // 2).repeat(1, 2)
        signs = torch.tensor([-1.0, 1.0]).repeat_interleave(self.head_dim // 2)
        self.tables = [angles.cos().bfloat16(), (signs * angles.sin()).bfloat16()]
        self.out = torch.full((num_rows, self.group * self.num_kv * self.head_dim), torch.nan)
        self.out = self.out.bfloat16()

    def new_heads(self, row: int, position: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [kv_heads, group, D], and the keys and values [kv_heads, D] to be stored."""
        heads = self.qkv[row].view(-1, self.head_dim)
        num_queries = self.group * self.num_kv
        queries, keys, values = heads.split((num_queries, self.num_kv, self.num_kv))
        queries = self._rotated(queries, self.norms[0], position)
        queries = queries.view(self.num_kv, self.group, self.head_dim)
        return queries, self._rotated(keys, self.norms[1], position), values

    def _rotated(self, heads: Tensor, weight: Tensor, position: int) -> Tensor:
        x = heads.float()
        x = (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)).bfloat16() * weight
        cos, sin = (table[position] for table in self.tables)
        return x * cos + x.roll(self.head_dim // 2, -1) * sin

    def attended(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Queries [kv_heads, group, D] and keys [kv_heads, T, D] to a row of the output."""
        scores = queries.float() @ keys.float().transpose(1, 2) * self.head_dim**-0.5
        return (scores.softmax(-1) @ values.float()).flatten()


@pytest.mark.parametrize(("first", "num_new"), [(0, 2), (1, 1), (15, 1)])
def test_frame_attention_equals_pytorch(
    attention: tuple[tuple[int, int, int], EmulatedDriver],
    first: int,
    num_new: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size, driver = attention
    kernels = load_attention(size, driver, monkeypatch)
    case, num_slots = Case(size, 3 * num_new), 3
    keys, values = (torch.randn(3, case.num_kv, 16, case.head_dim).bfloat16() for _ in range(2))
    keys[:, :, first:] = values[:, :, first:] = torch.nan  # not written yet
    tensors = (case.qkv, keys, values, *case.norms, *case.tables, case.out)
    kernels.attend_frame(tensors, first, num_new, EPS)
    for slot in range(num_slots):
        for i in range(num_new):
            row, position = slot * num_new + i, first + i
            queries, key, value = case.new_heads(row, position)
            assert torch.equal(keys[slot, :, position], key)
            assert torch.equal(values[slot, :, position], value)
            seen = (stored[slot, :, : position + 1] for stored in (keys, values))
            assert distance(case.out[row], case.attended(queries, *seen)) < 0.01


@pytest.mark.parametrize("num_spans", [1, 2])
def test_slot_attention_equals_pytorch(
    attention: tuple[tuple[int, int, int], EmulatedDriver],
    num_spans: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size, driver = attention
    kernels = load_attention(size, driver, monkeypatch)
    counts = [1, 16, 17, 64, 130, 256] if num_spans == 1 else [70, 257, 511]
    batch, num_pages = len(counts), 8
    case, num_keys = Case(size, batch), torch.tensor(counts)
    pages = torch.randperm(batch * num_pages).int().view(batch, num_pages)
    keys, values = (
        torch.randn(batch * num_pages, case.num_kv, 64, case.head_dim).bfloat16() for _ in range(2)
    )
    slots, scores = torch.arange(batch).flip(0), torch.zeros(batch, 600)
    for row, count in enumerate(counts):  # not written yet
        page = pages[slots[row], (count - 1) // 64]
        keys[page, :, (count - 1) % 64 :] = values[page, :, (count - 1) % 64 :] = torch.nan
    shape = (batch, case.group * case.num_kv, num_spans)
    parts = [torch.full(each, torch.nan) for each in ((*shape, case.head_dim), shape, shape)]
    out = case.out if num_spans == 1 else parts[0]
    watch = torch.tensor([3, case.num_kv - 1, 1], dtype=torch.int32)
    tensors = (case.qkv, keys, values, pages, *case.norms, *case.tables, slots, num_keys - 1,
               num_keys, out, *parts[1:], watch, scores)  # fmt: skip
    kernels.attend_slots(tensors, num_spans, 3, EPS)
    for row, count in enumerate(counts):
        slot, position = int(slots[row]), count - 1
        queries, key, value = case.new_heads(row, position)
        seen = [
            each[pages[slot]].transpose(0, 1).flatten(1, 2)[:, :count] for each in (keys, values)
        ]
        assert torch.equal(seen[0][:, -1], key)
        assert torch.equal(seen[1][:, -1], value)
        found = case.out[row] if num_spans == 1 else merged(*parts, row=row, num_keys=count)
        assert distance(found, case.attended(queries, *seen)) < 0.01
        watched = queries[-1, 1].float() @ seen[0][-1].float().T * case.head_dim**-0.5
        assert distance(scores[slot, :count], watched) < 1e-4
        assert not scores[slot, count:].any()


def load_attention(
    size: tuple[int, int, int], driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> CudaAttention:
    monkeypatch.setattr(attention_cuda, "driver", driver)
    monkeypatch.setattr(attention_cuda, "compile_kernels", lambda *_: b"")
    return CudaAttention(*size)


def merged(out: Tensor, peak: Tensor, total: Tensor, *, row: int, num_keys: int) -> Tensor:
    """The result of the spans of 256 keys."""
    count = -(-num_keys // 256)
    share = (peak[row, :, :count] - peak[row, :, :count].amax(-1, keepdim=True)).exp()
    mixed = (share[..., None] * out[row, :, :count]).sum(1)
    return (mixed / (share * total[row, :, :count]).sum(-1, keepdim=True)).flatten()


# -- residual units of the codec ------------------------------------------------------------------


def emulated_units(folder: Path, change: Callable[[str], str] = str) -> EmulatedDriver:
    source = change(codec_wgmma.kernel_source(()))
    kernels = EmulatedKernels(
        source, {f"unit_{size}": "Unit" for size in codec_wgmma.SHAPES}, folder
    )
    shared = (c_uint * len(codec_wgmma.SHAPES)).in_dll(kernels._library, "shared_bytes")
    return EmulatedDriver(kernels, list(shared))


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> EmulatedDriver:
    return emulated_units(tmp_path_factory.mktemp("units"))


def unit_error(
    driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch, size: int, length: int, dilation: int
) -> float:
    """Relative distance of a unit's outputs from PyTorch's: two streams on one or two blocks."""
    monkeypatch.setattr(codec_wgmma, "driver", driver)
    monkeypatch.setattr(codec_wgmma, "compile_source", lambda *_: b"")
    monkeypatch.setattr(codec_wgmma, "num_multiprocessors", lambda _: 1 + driver.seed % 2)
    torch.manual_seed(0)
    reach, slots = 6 * dilation, torch.tensor([2, 0])
    x, residual = (torch.randn(2, length, size).half() for _ in range(2))
    history = torch.randn(3, reach * size).half()
    first, second = (torch.randn(taps, size, size).div(size**0.5).half() for taps in (7, 1))
    inner, outer = (
        ColumnParameters(bias, frequency.abs(), gain.abs())
        for bias, frequency, gain in torch.randn(2, 3, size)
    )
    unit = WideUnit.pack(WgmmaKernels(CPU), first, second, inner, outer, dilation)
    assert unit is not None
    out, active = torch.full_like(x, torch.nan), torch.full_like(x, torch.nan)
    unit.run(Inputs(x, history, slots), Outputs(residual, out, active))
    joined = torch.cat((history.view(3, reach, size)[slots], x), dim=1)
    hidden = inner.activate(inner.bias + convolved(joined, first, dilation)).half()
    expected = outer.bias + convolved(hidden, second, 1) + residual
    return max(distance(out, expected), distance(active, outer.activate(expected)))


def convolved(x: Tensor, weight: Tensor, dilation: int) -> Tensor:
    filters = weight.float().permute(1, 2, 0)
    return F.conv1d(x.float().transpose(1, 2), filters, dilation=dilation).transpose(1, 2)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("size", "length", "dilation"), [(96, 130, 9), (192, 200, 3)])
def test_residual_unit_equals_pytorch(
    units: EmulatedDriver,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    length: int,
    dilation: int,
    seed: int,
) -> None:
    """Two tiles and more on one block, in random schedules."""
    units.seed = seed
    assert unit_error(units, monkeypatch, size, length, dilation) < 0.002


@pytest.mark.parametrize(
    ("removed", "size", "expected"),
    [
        pytest.param("wait(window_full, parity);", 192, "wrong", marks=pytest.mark.slow),
        (", arrive(window_empty)", 192, "deadlock"),
        ("wait_copies<0>();", 96, "wrong"),
    ],
)
def test_emulator_detects_missing_synchronization(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    removed: str,
    size: int,
    expected: str,
) -> None:
    driver = emulated_units(tmp_path, lambda source: without(source, removed))

    def is_detected(seed: int) -> bool:
        driver.seed = 2 * seed  # all tiles on one block
        try:
            return unit_error(driver, monkeypatch, size, 200, 1) > 0.002 and expected == "wrong"
        except KernelError as error:
            return expected == str(error)

    assert any(is_detected(seed) for seed in range(20))  # a lucky schedule hides a race


def without(source: str, removed: str) -> str:
    assert removed in source
    return source.replace(removed, "")
