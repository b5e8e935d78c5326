"""Exported folders of the embedded voice and of tiny checkpoints, each written once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import make_once
from vivace.checkpoint import EMBEDDED, Checkpoint
from vivace.export.write import export_onnx

if TYPE_CHECKING:
    from vivace.export.runner import OnnxVoice

Exported = Callable[[str], Path]
Opened = Callable[[str], "OnnxVoice"]


@pytest.fixture(scope="session")
def exported(tiny_folder: Path, session_folder: Path) -> Exported:
    """The folder of a tiny checkpoint, or of `mini`, in float32. Tests must not change it."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")

    @cache
    def write(name: str) -> Path:
        source = EMBEDDED if name == "mini" else tiny_folder / name
        checkpoint = Checkpoint.open(source)
        return make_once(
            session_folder / f"onnx-{name}",
            lambda folder: export_onnx(checkpoint, folder, "float32"),
        )

    return write


@pytest.fixture(scope="session")
def opened(exported: Exported) -> Opened:
    """The voice of an exported folder; opening one takes as long as many frames."""
    from vivace.export.runner import OnnxVoice

    return cache(lambda name: OnnxVoice(exported(name), num_threads=1))
