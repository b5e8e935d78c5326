"""benchmarks/sanitize.sh: which parts run, and which kernels compute-sanitizer checks."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.benchmarks.conftest import FOLDER
from tests.support.project import ROOT
from vivace.backends.cuda_graph.codec import product, unit
from vivace.backends.cuda_graph.layers import attention_cuda, product_wgmma

SCRIPT = (FOLDER / "sanitize.sh").read_text(encoding="utf-8")
PATTERNS = [re.compile(text) for text in re.findall(r"kernels='([^']+)'", SCRIPT)]
NAMED = r'extern "C" __global__.*?\b([a-z]\w+)\(const (?:__grid_constant__ )?\w+ request\)'


def cuda_kernels() -> list[str]:
    sources = [*(ROOT / "src").rglob("*.cu")]
    named = re.findall(NAMED, "\n".join(path.read_text(encoding="utf-8") for path in sources))
    layers = Path(product_wgmma.__file__).read_text(encoding="utf-8")
    of_host = re.findall(r'"(wgmma_[a-z]+|add_and_normalise)"', layers)
    of_codec = [shape.name for shape in product.SHAPES] + [f"unit_{size}" for size in unit.SHAPES]
    return sorted({*named, *of_host, *of_codec})


def test_every_cuda_kernel_is_checked() -> None:
    kernels = cuda_kernels()
    known = {*attention_cuda.FRAME_KERNELS, "attend_slots", "talker_kernel", "predictor_kernel"}
    assert known | {"wgmma_gated", "wgmma_parts", "add_and_normalise"} <= set(kernels)
    assert [name for name in kernels if not any(each.search(name) for each in PATTERNS)] == []


def test_every_triton_kernel_is_checked() -> None:
    sources = (ROOT / "src/vivace/backends/cuda_graph").rglob("*kernels.py")
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    kernels = re.findall(r"^def (\w+_kernel)\(", text, re.MULTILINE)
    assert len(kernels) > 15
    assert [name for name in kernels if not PATTERNS[0].search(name)] == []


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_cuda_kernels_of_the_layers_run_with_both_tools(tool: str) -> None:
    usual = {name: each for name, each in os.environ.items() if not name.startswith("SANITIZE_")}
    environment = {**usual, "SANITIZE_LIST": "1", "SANITIZE_TOOLS": tool}
    command = ["bash", str(FOLDER / "sanitize.sh")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert f"{tool} hopper 60" in lines
    parts = re.findall(
        r'^    "(\w+)": ', (FOLDER / "sanitized.py").read_text("utf-8"), re.MULTILINE
    )
    assert {line.split()[1] for line in lines} <= set(parts)
