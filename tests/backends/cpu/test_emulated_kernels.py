"""Instruction sets that this machine may lack, compiled for their CPU and run in QEMU.

Needs `qemu-user`, and `g++-x86-64-linux-gnu` on an ARM machine (names of Debian's packages).
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from vivace.backends.cpu import build

pytestmark = pytest.mark.slow

DRIVER = Path(__file__).parent / "compare_kernels.cpp"
# Machine, instruction sets, largest difference. Sums of integers are exact on all of them; AVX2
# adds the groups of a row in another order than plain C++.
CASES = [
    ("aarch64", "i8mm", "dotprod", 0.0),
    ("aarch64", "dotprod", "portable", 1e-5),
    ("x86_64", "avx2", "portable", 1e-5),
]


@pytest.mark.parametrize(("machine", "first", "second", "limit"), CASES)
def test_emulated_kernels_equal_each_other(
    tmp_path: Path, machine: str, first: str, second: str, limit: float
) -> None:
    emulator = shutil.which(f"qemu-{machine}")
    compiler = find_compiler(machine)
    if emulator is None or compiler is None:
        pytest.skip(f"no emulator or no compiler for {machine}")
    program = compile_driver(compiler, machine, {first, second}, tmp_path)
    root = f"/usr/{machine}-linux-gnu"  # the C library of a cross compiler
    libraries = ["-L", root] if Path(root).is_dir() else []
    command = [emulator, *libraries, "-cpu", "max", str(program), first, second, str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("0 of ")


def find_compiler(machine: str) -> str | None:
    cross = shutil.which(f"{machine}-linux-gnu-g++")
    return shutil.which("g++") if machine == build.machine_name() else cross


def compile_driver(compiler: str, machine: str, used: set[str], folder: Path) -> Path:
    """Link the driver with the kernels in use. The tables of the others are empty files."""
    objects = []
    for source in (DRIVER, build.SOURCES / "library.cpp", *build.SOURCES.glob("kernels_*.cpp")):
        name = source.stem.rpartition("_")[2]
        flags = build.TARGET_FLAGS[machine].get(name, ()) if name in used else ()
        objects.append(str(folder / f"{source.stem}.o"))
        run([compiler, *build.FLAGS, *flags, "-DVIVACE_SOURCE_HASH=\"\"", f"-I{build.SOURCES}",
             "-c", str(source), "-o", objects[-1]])  # fmt: skip
    program = folder / "compare"
    run([compiler, "-static-libstdc++", "-static-libgcc", "-pthread", *objects, "-o", str(program)])
    return program


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
