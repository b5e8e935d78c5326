"""Exported folders of the embedded voice and of tiny checkpoints, each written once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from vivace.checkpoint import EMBEDDED, Checkpoint
from vivace.export.write import export_onnx

if TYPE_CHECKING:
    from vivace.export.runner import OnnxVoice

Exported = Callable[[str], Path]
Opened = Callable[[str], "OnnxVoice"]


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


@pytest.fixture(scope="module")
def opened(exported: Exported) -> Opened:
    """The voice of an exported folder; opening one takes as long as many frames."""
    from vivace.export.runner import OnnxVoice

    return cache(lambda name: OnnxVoice(exported(name), num_threads=1))
