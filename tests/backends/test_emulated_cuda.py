"""The CUDA kernels of attention and of the codec's layers, emulated on a CPU."""

from __future__ import annotations

from ctypes import c_uint
from pathlib import Path
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.cuda_emulator import EmulatedKernels, find_compiler
from tests.support.emulated_driver import (
    EmulatedDriver,
    EmulatedModule,
    distance,
    is_detected,
)
from vivace.backends.cuda_graph import compile
from vivace.backends.cuda_graph.codec import product as codec_product
from vivace.backends.cuda_graph.codec import unit as codec_unit
from vivace.backends.cuda_graph.codec.operands import (
    ColumnParameters,
    Outputs,
    Processors,
    WideLayer,
)
from vivace.backends.cuda_graph.codec.product import SHAPES, CodecProducts, Shape, WideProduct
from vivace.backends.cuda_graph.codec.unit import UnitKernels, WideUnit
from vivace.backends.cuda_graph.layers import attention_cuda
from vivace.backends.cuda_graph.layers.attention_cuda import CudaAttention

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")

EPS = 1e-6
CPU = torch.device("cpu")


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
    return request.param, EmulatedDriver(lambda _: EmulatedModule(built))


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


# -- layers of the codec --------------------------------------------------------------------------


# Each text begins with a statement that a test removes.
WAIT_WINDOWS = "wait(windows_full + 8 * warpgroup, parity);"
FREE_WINDOWS = "arrive(windows_empty + 8 * warpgroup);"
WAIT_COPIES = "wait_copies<0>();"
FENCE = "fence_shared();"
OF_UNITS = (WAIT_WINDOWS, FREE_WINDOWS, WAIT_COPIES, FENCE)
WAIT_FULL = "wait(full + 8 * stage.number, stage.parity);"
FREE_LAST = "arrive(empty + 8 * last);\n        store_tile"
OF_PRODUCTS = (WAIT_FULL, FREE_LAST)


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> EmulatedDriver:
    kernels = {f"unit_{size}": "Unit" for size in codec_unit.SHAPES}
    folder, source = tmp_path_factory.mktemp("units"), codec_unit.kernel_source(())
    built = EmulatedKernels(source, kernels, folder, removable=OF_UNITS)
    shared = (c_uint * len(codec_unit.SHAPES)).in_dll(built._library, "shared_bytes")
    return EmulatedDriver(lambda _: EmulatedModule(built, list(shared)))


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> EmulatedDriver:
    kernels = {shape.name: "Product" for shape in SHAPES}
    folder, source = tmp_path_factory.mktemp("products"), codec_product.kernel_source(())
    built = EmulatedKernels(source, kernels, folder, removable=OF_PRODUCTS)
    return EmulatedDriver(lambda _: EmulatedModule(built))


def use(driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the launchers run emulated kernels."""
    for module in (codec_unit, codec_product):
        monkeypatch.setattr(module, "driver", driver)
        monkeypatch.setattr(module, "compile_source", lambda *_: b"")
    torch.manual_seed(0)


def processors(driver: EmulatedDriver) -> Processors:
    """One or two multiprocessors."""
    return Processors(1 + driver.seed % 2)


def random_parameters(num_columns: int) -> ColumnParameters:
    return ColumnParameters(*torch.randn(3, num_columns).abs())


def layer_error(
    layer: WideLayer | None, x: Tensor, expected: Tensor, parameters: ColumnParameters
) -> float:
    """Relative distance of a layer's outputs from the expected ones, before a residual."""
    assert layer is not None
    residual = torch.randn(expected.shape).half()
    out = torch.full_like(residual, torch.nan)
    apart = torch.full((len(out), 7 + out[0].numel()), torch.nan).half()  # streams with room
    active = apart[:, 7:].view(len(out), *out.shape[1:])
    layer.run(x, Outputs(residual, out, active))
    expected = expected + parameters.bias + residual
    assert apart[:, :7].isnan().all()
    return max(distance(out, expected), distance(active, parameters.activate(expected)))


def unit_error(
    driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch, size: int, length: int, dilation: int
) -> float:
    """Relative distance of a unit's outputs from PyTorch's: two streams on one or two blocks."""
    use(driver, monkeypatch)
    x = torch.randn(2, 6 * dilation + length, size).half()
    first, second = (torch.randn(taps, size, size).div(size**0.5).half() for taps in (7, 1))
    inner, outer = random_parameters(size), random_parameters(size)
    unit = WideUnit.pack(UnitKernels(processors(driver)), first, second, inner, outer, dilation)
    hidden = inner.activate(inner.bias + convolved(x, first, dilation)).half()
    return layer_error(unit, x, convolved(hidden, second, 1), outer)


def product_error(
    driver: EmulatedDriver,
    monkeypatch: pytest.MonkeyPatch,
    shape: Shape,
    size: tuple[int, int],  # streams, times
    dilation: int = 1,
) -> float:
    """Relative distance of a convolution's outputs from PyTorch's."""
    use(driver, monkeypatch)
    (num_streams, length), taps, num_columns = size, 2, 2 * shape.columns
    x = torch.randn(num_streams, dilation + length, 128).half()
    weight = torch.randn(taps, num_columns, 128).div(16).half()
    parameters = random_parameters(num_columns)
    product = WideProduct.pack(CodecProducts(processors(driver)), weight, parameters, dilation)
    monkeypatch.setattr(WideProduct, "_shape", lambda *_: shape)
    return layer_error(product, x, convolved(x, weight, dilation), parameters)


def convolved(x: Tensor, weight: Tensor, dilation: int) -> Tensor:
    filters = weight.float().permute(1, 2, 0)
    return F.conv1d(x.float().transpose(1, 2), filters, dilation=dilation).transpose(1, 2)


@pytest.mark.parametrize(
    ("size", "length", "dilation", "seed"), [(96, 130, 9, 0), (96, 130, 9, 1), (192, 130, 3, 1)]
)
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


@pytest.mark.parametrize(("size", "length"), [(96, 1), (192, 65)])
def test_residual_unit_with_few_rows_in_a_tile_equals_pytorch(
    units: EmulatedDriver, monkeypatch: pytest.MonkeyPatch, size: int, length: int
) -> None:
    """Tiles of one row, and a second warpgroup with one row."""
    units.seed = 0
    assert unit_error(units, monkeypatch, size, length, 9) < 0.002


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
@pytest.mark.parametrize(("size", "dilation"), [((3, 128), 1), ((5, 24), 9)], ids=str)
def test_convolution_equals_pytorch(
    products: EmulatedDriver,
    monkeypatch: pytest.MonkeyPatch,
    shape: Shape,
    size: tuple[int, int],
    dilation: int,
) -> None:
    """Tiles of one stream, and tiles of several streams of which the last do not exist."""
    products.seed = dilation % 2
    assert product_error(products, monkeypatch, shape, size, dilation) < 0.002


def test_convolution_of_one_time_of_many_streams_equals_pytorch(
    products: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a tile are from 128 streams."""
    products.seed = 0
    assert product_error(products, monkeypatch, SHAPES[-1], (130, 1), 3) < 0.002


def test_kernels_are_not_launched_while_triton_kernels_are_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(EmulatedDriver, "launch", lambda *_: pytest.fail("launched"))
    module = EmulatedModule(cast("EmulatedKernels", None), [0, 0])
    use(EmulatedDriver(lambda _: module), monkeypatch)
    x, residual = torch.randn(2, 4, 96).half(), torch.randn(2, 4, 192).half()
    weight, unit_weight = torch.randn(1, 192, 64).half(), torch.randn(7, 96, 96).half()
    product = WideProduct.pack(CodecProducts(Processors(1)), weight, random_parameters(192), 1)
    both = (random_parameters(96), random_parameters(96))
    unit = WideUnit.pack(UnitKernels(Processors(1)), unit_weight, unit_weight[:1], *both, 1)
    assert product is not None
    assert unit is not None
    token = compile._IS_COLLECTING.set(True)
    try:
        product.run(x[..., :64], Outputs(residual, None, residual))
        unit.run(x, Outputs(x, None, x))
    finally:
        compile._IS_COLLECTING.reset(token)


@pytest.mark.parametrize(
    ("removed", "size", "expected"),
    [
        (WAIT_WINDOWS, 192, "wrong"),
        (FREE_WINDOWS, 192, "deadlock"),
        (WAIT_COPIES, 96, "wrong"),
        (FENCE, 96, "a fence is missing"),
        (FENCE, 192, "a fence is missing"),
    ],
)
def test_emulator_detects_missing_synchronization_of_units(
    units: EmulatedDriver,
    monkeypatch: pytest.MonkeyPatch,
    removed: str,
    size: int,
    expected: str,
) -> None:
    monkeypatch.setattr(units, "removed", 1 + OF_UNITS.index(removed))
    assert is_detected(expected, units, lambda: unit_error(units, monkeypatch, size, 200, 1))


@pytest.mark.parametrize(
    ("removed", "expected"),
    [(WAIT_FULL, "a barrier has too many arrivals"), (FREE_LAST, "deadlock")],
)
def test_emulator_detects_missing_synchronization_of_products(
    products: EmulatedDriver, monkeypatch: pytest.MonkeyPatch, removed: str, expected: str
) -> None:
    monkeypatch.setattr(products, "removed", 1 + OF_PRODUCTS.index(removed))
    assert is_detected(
        expected, products, lambda: product_error(products, monkeypatch, SHAPES[-1], (2, 256))
    )
