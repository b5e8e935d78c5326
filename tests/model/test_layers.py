"""Layers that talker, predictor and codec share."""

from __future__ import annotations

import torch

from vivace.model.layers import Rope


def test_rope_has_the_dtype_of_every_input() -> None:
    """A model may be converted after its first use."""
    rope = Rope(8, 10_000.0)
    exact = rope.span(3, 4, torch.empty(1))
    for dtype in (torch.bfloat16, torch.float32):
        for part, expected in zip(rope.span(3, 4, torch.empty(1, dtype=dtype)), exact, strict=True):
            assert torch.equal(part, expected.to(dtype))
