"""Sizes of the codec's layers on a GPU; their kernels need one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from vivace.backends.cuda_graph.codec.layers import Product, Unit
from vivace.backends.cuda_graph.codec.operands import Outputs


class WideLayerOfAnySize:
    def is_worthwhile(self, num_streams: int, length: int) -> bool:
        return True

    def run(self, x: Tensor, outputs: Outputs) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("size", "length", "dtype", "room"),
    [
        (128, 64, torch.half, 0),  # Triton's fused kernel reads inputs without room
        (128, 63, torch.half, 18 * 128),
        (384, 64, torch.half, 18 * 384),  # too many channels for the fused kernel
        (128, 64, torch.float32, 18 * 128),
    ],
)
def test_unit_leaves_room_for_the_past_where_its_first_layer_is_wide(
    size: int, length: int, dtype: torch.dtype, room: int
) -> None:
    wide = WideLayerOfAnySize()
    first = Product(torch.empty(7, size, size, dtype=dtype), dilation=3, wide=wide)
    unit = Unit(first, Product(torch.empty(1, size, size, dtype=dtype)))
    assert unit.room(1, length) == room
    assert Unit(first, unit.second, wide).room(1, length) == 18 * size
