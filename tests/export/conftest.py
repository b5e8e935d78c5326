"""Exported folders of the embedded voice and of tiny checkpoints, each written once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from vivace.checkpoint import EMBEDDED, Checkpoint
from vivace.export.write import export_onnx

Exported = Callable[[str], Path]


@pytest.fixture(scope="session")
def exported(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The folder of a tiny checkpoint, or of `mini`, in float32."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")

    @cache
    def write(name: str) -> Path:
        source = EMBEDDED if name == "mini" else tiny_folder / name
        folder = tmp_path_factory.mktemp("onnx") / name
        export_onnx(Checkpoint.open(source), folder, "float32")
        return folder

    return write
