"""The command that compares the weights of ONNX graphs, in smoke size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks.conftest import Run

pytest.importorskip("onnxruntime")


def test_exported_compares_draws_of_stored_weights(run: Run, tmp_path: Path) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "exported.json"
    text.write_text("Hi.\n", "utf-8")
    run("exported.py", text, "--json", out,
        WEIGHTS=("float32", "int8"), load_recogniser=lambda: None)  # fmt: skip
    report = json.loads(out.read_text("utf-8"))["weights"]
    assert report["float32"]["agreement"] == {"first_percent": 100.0, "all_percent": 100.0}
    assert report["int8"]["mb"] < report["float32"]["mb"] / 2
    assert report["int8"]["agreement"]["first_percent"] > 50
    assert report["int8"]["seconds_of_speech"] > 0
