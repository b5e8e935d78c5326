"""Dropping the pages of mapped tensors."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from vivace.backends.cpu.page_out import page_out


def test_paged_out_tensors_keep_their_values(tmp_path: Path) -> None:
    stored = {"weight": torch.randn(300, 300), "bias": torch.randn(300)}
    save_file(stored, tmp_path / "layer.safetensors")
    layer = nn.Linear(300, 300)
    with safe_open(tmp_path / "layer.safetensors", framework="pt") as file:
        mapped = {name: file.get_tensor(name) for name in stored}
    layer.load_state_dict(mapped, assign=True)
    own = nn.Linear(300, 300)  # not in a file
    before = own.weight.clone()
    page_out(layer)
    page_out(own)
    assert all(torch.equal(layer.state_dict()[name], stored[name]) for name in stored)
    assert torch.equal(own.weight, before)
