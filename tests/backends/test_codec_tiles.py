"""Tiles of the codec's products: enough blocks for the GPU, little waste, and whole channels."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vivace.backends.cuda_graph import codec_tiles
from vivace.backends.cuda_graph.codec_tiles import (
    HALF,
    LARGE,
    SINGLE,
    SMALL,
    SPLIT,
    Tile,
    pick_tile,
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
        (2_048, 768, 768, HALF, LARGE[0]),
        (512, 768, 768, HALF, LARGE[2]),  # smaller, for more blocks
        (32, 768, 768, HALF, SMALL[3]),
        (1, 4_096, 1_024, HALF, SMALL[3]),
        (1, 4_096, 1_024, SPLIT, replace(SMALL[3], depth=32)),
        (1, 4_096, 1_024, SINGLE, Tile(16, 16, 128, num_stages=4)),
        (320, 192, 192, HALF, replace(SMALL[3], depth=64)),
        (1_920, 1, 96, HALF, replace(SMALL[3], depth=32)),
    ],
)
def test_pick_tile_fills_the_gpu_with_little_waste(
    num_rows: int, num_columns: int, depth: int, precision: str, tile: Tile
) -> None:
    assert pick_tile(num_rows, num_columns, depth, CPU, precision) == tile


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
