"""Commands of benchmarks/README.md that need a CUDA device, in smoke size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.benchmarks.conftest import Run

products = pytest.importorskip("vivace.backends.cuda_graph.layers.products")
product_wgmma = pytest.importorskip("vivace.backends.cuda_graph.layers.product_wgmma")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
SHAPE = "0.6B-CustomVoice"


def results(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))["results"]


def test_persistent_command(run: Run, tmp_path: Path) -> None:
    run("persistent.py", SHAPE, "--batches", "1", "--json", tmp_path / "persistent.json")
    found = results(tmp_path / "persistent.json")
    assert [row["backend"] for row in found] == ["megakernel", "cuda_graph"]


def test_codec_command(run: Run, tmp_path: Path) -> None:
    run("codec.py", "--json", tmp_path / "codec.json")
    assert [row["precision"] for row in results(tmp_path / "codec.json")] == ["split", "half"]


def test_kernels_command(run: Run, tmp_path: Path) -> None:
    run("kernels.py", SHAPE, "--batches", "1", "--json", tmp_path / "kernels.json")
    errors = [
        kernel["error"]
        for part in results(tmp_path / "kernels.json")
        for kernel in part["kernels"]
        if kernel["error"] is not None
    ]
    assert errors
    assert max(errors) < 0.05


def test_latency_command(run: Run, tmp_path: Path) -> None:
    run("latency.py", SHAPE, "--max-streams", "1", "--batches", "--frames", "16", "--repeats", "2",
        "--json", tmp_path / "latency.json")  # fmt: skip
    [result] = results(tmp_path / "latency.json")
    assert result["memory_mib"]["model"] > 1000


def test_batch_difference_command(run: Run, tmp_path: Path) -> None:
    run("batch_difference.py", "--json", tmp_path / "difference.json", LAST=42, NUM_STREAMS=2)
    assert results(tmp_path / "difference.json")["half"]["largest_difference"] < 0.01


def test_layer_chain_command(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tiles", "split_tiles"):  # the benchmark replaces them
        monkeypatch.setattr(products, name, getattr(products, name))
    monkeypatch.setattr(product_wgmma, "find_tiles", product_wgmma.find_tiles)
    run("layer_chain.py", "--rows", "64", "--json", tmp_path / "chain.json")
    found = results(tmp_path / "chain.json")
    assert {row["kernel"] for row in found} == {"qkv", "o", "gate-up", "down"}
    assert all(row["is_equal"] for row in found if row["order"] == "sequence")


def test_tile_sweep_command(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tiles", "split_tiles"):  # the benchmark replaces them
        monkeypatch.setattr(products, name, getattr(products, name))
    monkeypatch.setattr(product_wgmma, "find_tiles", product_wgmma.find_tiles)
    run("tile_sweep.py", "--rows", "64", "--cases", "0.6B down", "--seconds", "10", "--json",
        tmp_path / "tiles.json")  # fmt: skip
    [row] = results(tmp_path / "tiles.json")
    assert row["us"]


@pytest.mark.parametrize("part", ["megakernel", "fused", "half", "hopper", "wide"])
def test_sanitized_command(
    part: str, run: Run, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("sanitized.py", part, tiny_folder, "small")
    assert f"{part}: done" in capsys.readouterr().out
