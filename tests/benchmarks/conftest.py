"""Runs benchmark scripts inside the test process."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from tests.support.project import ROOT, load_script

FOLDER = ROOT / "benchmarks"
TRITON = (  # import Triton kernels
    *("codec.py", "kernels.py", "layer_chain.py", "stream_sweep.py", "tile_sweep.py"),
)

Run = Callable[..., None]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the `main` of a benchmark with these arguments, after replacing names of its module."""
    monkeypatch.syspath_prepend(FOLDER)

    def run_script(name: str, *arguments: object, **replaced: object) -> None:
        if name in TRITON:
            pytest.importorskip("triton")
        module = load_script(FOLDER / name)
        for key, value in replaced.items():
            monkeypatch.setattr(module, key, value)
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        module.main()

    return run_script
