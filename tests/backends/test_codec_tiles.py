"""Tiles of the codec's products: enough blocks for the GPU, little waste, and whole channels."""

from __future__ import annotations

import pytest
import torch

from vivace.backends.cuda_graph import codec_tiles
from vivace.backends.cuda_graph.codec_tiles import Tile, pick_tile

CPU, HALF, SINGLE = torch.device("cpu"), torch.float16, torch.float32


@pytest.fixture(autouse=True)
def multiprocessors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec_tiles, "num_multiprocessors", lambda device: 132)


@pytest.mark.parametrize(
    ("num_rows", "num_columns", "depth", "dtype", "tile"),
    [
        (491_520, 192, 192, HALF, Tile(128, 64, 64)),
        (491_520, 96, 96, HALF, Tile(128, 64, 32)),  # 96 channels are three blocks of 32
        (491_520, 192, 192, SINGLE, Tile(128, 64, 32)),  # twice the bytes
        (2_048, 768, 768, HALF, Tile(128, 64, 64)),
        (512, 768, 768, HALF, Tile(64, 32, 64)),  # smaller, for more blocks
        (32, 768, 768, HALF, Tile(32, 16, 128, 4)),  # few rows: warps share the depth
        (1, 4_096, 1_024, HALF, Tile(16, 16, 128, 4)),
        (1, 4_096, 1_024, SINGLE, Tile(16, 16, 64, 1)),
        (320, 192, 192, HALF, Tile(16, 16, 64, 2)),
        (1_920, 1, 96, HALF, Tile(32, 16, 32, 1)),
    ],
)
def test_the_tile_suits_the_product(
    num_rows: int, num_columns: int, depth: int, dtype: torch.dtype, tile: Tile
) -> None:
    assert pick_tile(num_rows, num_columns, depth, CPU, dtype) == tile


def test_a_tile_has_no_more_rows_than_its_registers_allow() -> None:
    assert pick_tile(512, 3_072, 512, CPU, SINGLE) == Tile(128, 64, 32)
    assert pick_tile(512, 3_072, 512, CPU, SINGLE, max_rows=64) == Tile(64, 64, 32)


@pytest.mark.parametrize("dtype", [HALF, SINGLE])
@pytest.mark.parametrize("depth", [32, 96, 192, 384, 512, 768, 1_024, 1_536])
@pytest.mark.parametrize("num_rows", [1, 16, 64, 320, 4_096, 100_000])
def test_blocks_of_the_depth_are_whole_and_parts_long_enough_for_tensor_cores(
    num_rows: int, depth: int, dtype: torch.dtype
) -> None:
    tile = pick_tile(num_rows, 768, depth, CPU, dtype)
    assert depth % tile.depth == 0
    assert tile.depth // tile.parts >= 32
