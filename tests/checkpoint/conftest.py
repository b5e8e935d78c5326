"""Fixtures of tests that change a checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def folder(few_folder: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of a base checkpoint that a test may change."""
    return Path(shutil.copytree(few_folder("base"), tmp_path / "base"))
