"""Tile sizes and sources of the CUDA kernels for Hopper GPUs. Needs NVRTC, but no GPU."""

from __future__ import annotations

import ctypes

import pytest
import torch

from vivace.backends.cuda import nvrtc
from vivace.backends.cuda_graph.layers import attention_cuda, product_wgmma, tiles
from vivace.backends.cuda_graph.layers.product_wgmma import (
    GATED,
    SPLIT,
    ProductArguments,
    find_tiles,
)
from vivace.errors import BackendUnavailableError

MAX_SHARED = 227 * 2**10


@pytest.fixture
def needs_compiler() -> None:
    try:
        nvrtc.check_installed()
    except BackendUnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("is_gated", [True, False])
def test_all_tiles_fit_shared_memory_and_instructions(is_gated: bool) -> None:
    cuts = {cut for *_, cut in (GATED if is_gated else SPLIT) if cut is not None}
    assert cuts
    for cut in cuts:
        assert cut.num_bytes(is_gated=is_gated) <= MAX_SHARED
        assert cut.columns * (1 + is_gated) % 8 == 0
        assert cut.columns * (1 + is_gated) <= 256
        assert cut.rows % 64 == 0
        assert cut.rows <= 256


def test_arguments_have_the_size_of_the_struct() -> None:
    assert ctypes.sizeof(ProductArguments) == 320


def test_sizes_that_do_not_fit_are_left_to_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "_is_hopper", lambda device: True)
    x, weight = torch.empty(64, 1024).bfloat16(), torch.empty(6144, 1024).bfloat16()
    assert find_tiles(x, weight, True) is not None
    assert find_tiles(x, weight[:2048], False) is not None
    assert find_tiles(x, weight[:1024], False) is None
    assert find_tiles(x[:32], weight, True) is None
    assert find_tiles(x[:, :1000], weight[:, :1000], True) is None
    assert find_tiles(x[:, :192], weight[:2048, :192], False) is None
    assert find_tiles(x, weight[:6000], True) is not None
    assert find_tiles(x, weight[:6008], True) is None
    assert find_tiles(x.float(), weight.float(), True) is None
    monkeypatch.setattr(tiles, "_is_hopper", lambda device: False)
    assert find_tiles(x, weight, True) is None


@pytest.mark.usefixtures("needs_compiler")
def test_kernels_compile() -> None:
    kernels = "PRODUCT(gated, 64, 32, 1, 4)\nPRODUCT(parts, 128, 64, 0, 4)\nNORM(normed, 2)"
    code = nvrtc.compile_source(product_wgmma._kernel_source(kernels, 64), "sm_90a", [])
    assert all(name in code for name in (b"gated", b"parts", b"normed"))
    code = attention_cuda.compile_kernels(head_dim=64, group=3, num_kv_heads=2)
    assert all(name.encode() in code for name in (*attention_cuda.FRAME_KERNELS, "attend_slots"))
