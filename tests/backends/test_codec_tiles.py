"""Tiles of the codec's products: enough blocks for the GPU, little waste, and whole channels."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vivace.backends.cuda_graph.codec import tiles as codec_tiles
from vivace.backends.cuda_graph.codec.tiles import (
    DEEP,
    HALF,
    LARGE,
    SHORT,
    SINGLE,
    SINGLE_GATED,
    SINGLE_WIDE,
    SMALL,
    SPLIT,
    WIDE,
    Tile,
    UnitTile,
    pick_tile,
    pick_unit_tile,
)

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def multiprocessors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec_tiles, "num_multiprocessors", lambda device: 132)


@pytest.mark.parametrize(
    ("num_rows", "num_columns", "depth", "precision", "tile"),
    [
        (491_520, 192, 192, HALF, LARGE[0]),
        (491_520, 96, 96, HALF, replace(LARGE[0], depth=32)),  # 96 channels are 3 blocks of 32
        (491_520, 192, 192, SPLIT, replace(LARGE[0], depth=32)),  # twice the bytes
        (16_384, 768, 768, HALF, SHORT),
        (16_384, 4_096, 1_024, HALF, WIDE),
        (16_384, 768, 768, SPLIT, replace(LARGE[0], depth=32)),
        (2_048, 768, 768, HALF, LARGE[0]),  # too few blocks for the wide tile
        (512, 768, 768, HALF, LARGE[2]),  # smaller, for more blocks
        (32, 768, 768, HALF, DEEP),
        (1, 4_096, 1_024, HALF, DEEP),
        (4, 6_144, 1_536, HALF, SMALL[3]),  # too many blocks for the deep tile's shared memory
        (160, 384, 384, HALF, SMALL[3]),  # 384 channels are not whole deep blocks
        (1, 4_096, 1_024, SPLIT, replace(SMALL[3], depth=32)),
        (1, 512, 1_024, SINGLE, Tile(16, 16, 128, num_stages=4)),
        (1, 3_072, 512, SINGLE, SINGLE_WIDE),
        (1, 1_024, 192, SINGLE, replace(SINGLE_WIDE, depth=64)),
        (512, 512, 1_024, SINGLE, Tile(32, 32, 64, num_stages=4)),
        (512, 3_072, 512, SINGLE, Tile(128, 64, 32)),
        (320, 192, 192, HALF, replace(SMALL[3], depth=64)),
        (1_920, 1, 96, HALF, replace(SMALL[3], depth=32)),
    ],
)
def test_pick_tile_fills_the_gpu_with_little_waste(
    num_rows: int, num_columns: int, depth: int, precision: str, tile: Tile
) -> None:
    assert pick_tile(num_rows, num_columns, depth, CPU, precision) == tile


@pytest.mark.parametrize(
    ("num_rows", "num_channels", "tile"),
    [
        (15_360, 96, UnitTile(64, 32, 32)),
        (15_360, 192, UnitTile(128, 64, 64)),
        (15_360, 64, UnitTile(64, 0, 64)),
        (15_360, 32, UnitTile(32, 0, 32)),
        (15_360, 160, None),  # not one or two powers of two
        (15_360, 256, None),  # too wide
        (15_360, 16, None),
        (8_447, 96, None),  # fewer blocks than multiprocessors
    ],
)
def test_residual_unit_is_one_kernel_for_many_rows_of_few_channels(
    num_rows: int, num_channels: int, tile: UnitTile | None
) -> None:
    assert pick_unit_tile(num_rows, num_channels, CPU) == tile


def test_gated_products_of_few_rows_have_their_own_tile() -> None:
    assert pick_tile(1, 1_024, 512, CPU, SINGLE, is_gated=True) == SINGLE_GATED
    assert pick_tile(1, 512, 512, CPU, SINGLE, is_gated=True) == Tile(16, 16, 128, num_stages=4)


def test_wide_tile_depends_on_the_length_of_a_sum() -> None:
    assert pick_tile(16_384, 768, 768, CPU, HALF, taps=7) == WIDE
    assert pick_tile(81_920, 768, 384, CPU, HALF, taps=2) == WIDE
    assert pick_tile(81_920, 384, 384, CPU, HALF) == SHORT


def test_pick_tile_respects_max_rows() -> None:
    assert pick_tile(512, 3_072, 512, CPU, SPLIT) == Tile(128, 64, 32)
    assert pick_tile(512, 3_072, 512, CPU, SPLIT, max_rows=64) == Tile(64, 64, 32)


@pytest.mark.parametrize("precision", [HALF, SINGLE, SPLIT])
@pytest.mark.parametrize("depth", [32, 96, 192, 384, 512, 768, 1_024, 1_536])
@pytest.mark.parametrize("num_rows", [1, 16, 64, 320, 4_096, 100_000])
def test_tile_depth_divides_the_channels(num_rows: int, depth: int, precision: str) -> None:
    tile = pick_tile(num_rows, 768, depth, CPU, precision)
    assert depth % tile.depth == 0
    assert tile.depth >= 32
