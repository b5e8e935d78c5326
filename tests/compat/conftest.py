"""The models of compatibility tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from vivace.compat import Qwen3TTSModel


@pytest.fixture(scope="module")
def load(tiny_folder: Path) -> Callable[[str], Qwen3TTSModel]:
    """Loads a tiny model by name, once per test module."""

    @cache
    def load_model(name: str) -> Qwen3TTSModel:
        return Qwen3TTSModel.from_pretrained(tiny_folder / name, device_map="cpu")

    return load_model
