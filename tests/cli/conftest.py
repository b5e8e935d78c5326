"""The model of command-line tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def model(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run commands with this default model in a temporary working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIVACE_MODEL", str(tiny_folder / "custom_voice"))
    return tiny_folder / "custom_voice"
