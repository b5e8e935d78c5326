"""The quality gate of integer weights, at small size: logits of the embedded voice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.conftest import Run


@pytest.fixture
def distances(run: Run, tmp_path: Path) -> dict[str, Any]:
    texts = tmp_path / "texts.txt"
    texts.write_text("The ship sailed at noon, and it rained all day.\n")
    path = tmp_path / "report.json"
    run("quantization.py", texts, "--lines", "0", "--weights", "int8", "int4", "--json", path)
    logits: dict[str, Any] = json.loads(path.read_text())["logits"]
    return logits


def test_logits_of_integer_weights_are_close_to_float32(distances: dict[str, Any]) -> None:
    assert distances["frames"] > 20
    int8, int4 = distances["int8"], distances["int4"]
    assert len(int8["kl_by_codebook"]) == 6
    assert 0 < int8["kl_talker"] < 0.002
    assert 0 < int8["kl_predictor"] < 0.005
    assert int8["same_likeliest_talker_percent"] > 94
    assert int8["same_likeliest_predictor_percent"] > 88
    assert int8["kl_talker"] < int4["kl_talker"] < 0.05
    assert int8["kl_predictor"] < int4["kl_predictor"] < 0.2
    assert int4["same_likeliest_talker_percent"] > 85
    assert int4["same_likeliest_predictor_percent"] > 55
