"""Fixtures of tests that change a checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    """A copy of a base checkpoint that a test may change."""
    return Path(shutil.copytree(tiny_folder / "base", tmp_path / "base"))
