"""The CUDA kernels of products with many rows, and of the norm after them, emulated on a CPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.support.cuda_emulator import EmulatedKernels, find_compiler
from tests.support.emulated_driver import (
    EmulatedDriver,
    EmulatedModule,
    distance,
    is_detected,
)
from vivace.backends.cuda_graph.hopper.wgmma_source import DEPTH
from vivace.backends.cuda_graph.layers import product_wgmma
from vivace.backends.cuda_graph.layers.product_wgmma import WgmmaProducts, WgmmaTiles
from vivace.model import ops
from vivace.model.layers import RMSNorm

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")

EPS = 1e-6
SMALL, GATED, SPLIT = WgmmaTiles(64, 24, 3), WgmmaTiles(128, 48, 4), WgmmaTiles(128, 64, 3)
# Each text begins with a statement that a test removes.
SYNC = "__syncthreads();\n    if (warp"
WAIT_FULL = "wait(full + 8 * (i % STAGES), i / STAGES & 1);"
WAIT_EMPTY = "wait(empty + 8 * (i % STAGES), (i / STAGES - 1) & 1);"
WAIT_PRODUCTS = "wait_products<1>();"
WAIT_LAST_PRODUCT = "wait_products<0>();"
FREE_LAST = "arrive(empty + 8 * ((i - 1) % STAGES));"
SYNC_SUMS = "__syncthreads();\n    total"
REMOVABLE = (
    SYNC, WAIT_FULL, WAIT_EMPTY, WAIT_PRODUCTS, WAIT_LAST_PRODUCT, FREE_LAST, SYNC_SUMS,
)  # fmt: skip


def emulator(folder: Path) -> Callable[[bytes], EmulatedModule]:
    """Emulates the kernels of each source."""

    def emulate(code: bytes) -> EmulatedModule:
        own, source = folder / str(len(list(folder.iterdir()))), code.decode()
        own.mkdir()
        found = re.findall(r"^(PRODUCT|NORM)\((\w+)", source, re.MULTILINE)
        kernels = {name: kind.title() for kind, name in found}  # to the type of the request
        return EmulatedModule(EmulatedKernels(source, kernels, own, ["BFLOAT16"], REMOVABLE))

    return emulate


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> EmulatedDriver:
    return EmulatedDriver(emulator(tmp_path_factory.mktemp("products")))


@pytest.fixture(scope="module")
def kernels(driver: EmulatedDriver) -> Iterator[WgmmaProducts]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(product_wgmma, "driver", driver)
        patch.setattr(product_wgmma, "compile_source", lambda source, *_: source.encode())
        yield WgmmaProducts()


@pytest.fixture(autouse=True)
def seeded_inference() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.inference_mode():
        yield


def product_error(
    kernels: WgmmaProducts, cut: WgmmaTiles, num_rows: int, num_steps: int, *, is_gated: bool
) -> float:
    """Relative distance of a product from PyTorch's: two tiles of columns; steps of each part."""
    num_columns, num_parts = 2 * cut.columns, 1 if is_gated else 4
    depth = num_steps * DEPTH * num_parts
    x = torch.randn(2 * num_rows, depth).bfloat16()[::2]
    weight = torch.randn((1 + is_gated) * num_columns, depth).mul(depth**-0.5).bfloat16()
    expected = x.float() @ weight.float().T
    memory = torch.full((num_parts * num_rows + cut.rows, num_columns), torch.nan)
    if is_gated:
        gate, up = expected.bfloat16().chunk(2, dim=-1)
        expected, memory = ops.gated_mlp(gate, up).float(), memory.bfloat16()
    parts = memory[: -cut.rows].view(num_parts, num_rows, num_columns)
    kernels.multiply(cut, x, weight, parts[0] if is_gated else parts)
    assert memory[-cut.rows :].isnan().all()
    return distance(parts.sum(0), expected)


def norm_error(kernels: WgmmaProducts, size: int) -> float:
    """Relative distance of a residual sum or its norm from PyTorch's, the larger one."""
    parts, residual = torch.randn(4, 5, size), torch.randn(5, size).bfloat16()
    norm = RMSNorm(size, EPS)
    norm.weight.data = torch.randn(size).bfloat16()
    out, normed = (torch.full_like(residual, torch.nan) for _ in range(2))
    kernels.add_and_normalise(parts, residual, norm, out, normed)
    expected = residual.float() + parts.sum(0).bfloat16()
    unit = expected * expected.square().mean(-1, keepdim=True).add(EPS).rsqrt()
    return max(distance(out, expected), distance(normed, unit * norm.weight.float()))


@pytest.mark.parametrize(
    ("num_rows", "num_steps"),
    [(40, 2), (40, 9), (200, 1), (130, 4)],  # rows of a tile and stages: fewer, as many, more
)
@pytest.mark.parametrize(
    ("cut", "is_gated"), [(SMALL, True), (GATED, True), (SPLIT, False)], ids=str
)
def test_product_equals_pytorch(
    kernels: WgmmaProducts,
    driver: EmulatedDriver,
    cut: WgmmaTiles,
    is_gated: bool,
    num_rows: int,
    num_steps: int,
) -> None:
    """In random schedules."""
    for driver.seed in range(3):
        assert product_error(kernels, cut, num_rows, num_steps, is_gated=is_gated) < 0.005


@pytest.mark.parametrize("size", product_wgmma.NORM_SIZES)
def test_norm_after_product_equals_pytorch(kernels: WgmmaProducts, size: int) -> None:
    assert norm_error(kernels, size) < 0.005


@pytest.mark.parametrize(
    ("removed", "expected"),
    [
        (SYNC, "a barrier is not initialized"),
        (WAIT_FULL, "a barrier has too many arrivals"),
        (WAIT_EMPTY, "a barrier has too many arrivals"),
        (WAIT_PRODUCTS, "wrong"),
        (WAIT_LAST_PRODUCT, "a product was never waited for"),
        (FREE_LAST, "deadlock"),
    ],
)
def test_emulator_detects_missing_synchronization_of_products(
    kernels: WgmmaProducts,
    driver: EmulatedDriver,
    monkeypatch: pytest.MonkeyPatch,
    removed: str,
    expected: str,
) -> None:
    monkeypatch.setattr(driver, "removed", 1 + REMOVABLE.index(removed))
    assert is_detected(
        expected, driver, lambda: product_error(kernels, SMALL, 64, 9, is_gated=True)
    )


def test_emulator_detects_missing_synchronization_of_norms(
    kernels: WgmmaProducts, driver: EmulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "removed", 1 + REMOVABLE.index(SYNC_SUMS))
    size = product_wgmma.NORM_SIZES[0]
    assert is_detected("wrong", driver, lambda: norm_error(kernels, size))
