"""Moving integer weights into huge pages."""

from __future__ import annotations

import mmap

import pytest
import torch
from torch import nn

from vivace.backends.cpu import huge_pages
from vivace.backends.cpu.huge_pages import HugePages, move_weights


class IntegerLayer(nn.Linear):
    def __init__(self, size: int) -> None:
        nn.Module.__init__(self)
        self.register_buffer("weight", torch.randint(-127, 128, (size, 8), dtype=torch.int8))


def test_moved_tensors_keep_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "CHUNK_BYTES", 4096)
    pages = HugePages()
    tensors = [
        torch.randint(-127, 128, (size, 5), dtype=torch.int8) for size in (1, 700, 100, 9000)
    ]
    moved = [pages.move(tensor) for tensor in tensors]
    assert all(map(torch.equal, moved, tensors))
    assert all(each.data_ptr() % huge_pages.ALIGNMENT == 0 for each in moved)
    moved[0].zero_()
    assert torch.equal(moved[1], tensors[1])


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="needs Linux")
def test_weights_of_large_models_move_and_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    layers: list[nn.Linear] = [IntegerLayer(30), nn.Linear(4, 4), IntegerLayer(50)]
    model = nn.ModuleList(layers)
    before = [layer.weight.clone() for layer in layers]
    addresses = [layer.weight.data_ptr() for layer in layers]
    move_weights(model)
    assert [layer.weight.data_ptr() for layer in layers] == addresses
    monkeypatch.setattr(huge_pages, "MIN_BYTES", 640)
    move_weights(model)
    moved = [layer.weight.data_ptr() != was for layer, was in zip(layers, addresses, strict=True)]
    assert moved == [True, False, True]
    assert all(torch.equal(layer.weight, was) for layer, was in zip(layers, before, strict=True))
