"""Fixtures of the GPU tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def seeded_inference() -> Iterator[None]:
    """Random tensors repeat, and no gradients are kept."""
    torch.manual_seed(0)
    with torch.inference_mode():
        yield
