"""Runs the CUDA kernels for Hopper GPUs on a CPU; see cuda_emulator.h.

The translation replaces inline assembly by calls, and the C++ compiler does the rest. The products
of warpgroups come from cuda_emulator.h instead of wgmma_source.py.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

EMULATOR = Path(__file__).with_suffix(".h")
FLAGS = ("-O1", "-std=c++17", "-ffp-contract=off", "-fno-strict-aliasing", "-w", "-shared", "-fPIC")
INSTRUCTIONS = {  # first words of the assembly: function of cuda_emulator.h
    "mbarrier.init": "init_barrier",
    "mbarrier.arrive.expect_tx": "expect_bytes",
    "mbarrier.arrive.shared": "arrive",
    "{ .reg .pred done": "wait_barrier",
    "bar.sync": "sync_threads",
    "cp.async.bulk.shared": "copy_bulk",
    "cp.async.bulk.tensor.2d": "copy_tile2",
    "cp.async.bulk.tensor.3d": "copy_tile3",
    "cp.async.cg": "copy_chunk",
    "cp.async.commit_group": "commit_copies",
    "cp.async.wait_group": "wait_copies",
    "fence.proxy.async": "fence_shared",
    "wgmma.commit_group": "commit_products",
    "wgmma.wait_group": "wait_products",
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16": "load_matrices",
    "mma.sync.aligned.m16n8k16": "multiply",
    "cvt.rn.satfinite.f16x2": "pack_float16",
    "{ .reg .f16 low, high": "unpack_float16",
    "cvt.rn.bf16x2": "pack_bfloat16",
    "cvt.rn.bf16": "round_bfloat16",
    "ex2.approx": "raise_two",
    "div.full": "divide",
    "rsqrt.approx": "invert_root",
}
NO_EFFECT = (
    "wgmma.fence",
    "fence.mbarrier",
    "griddepcontrol.",
    "prefetch.",
    "cp.async.bulk.prefetch.",
    "setmaxnreg.",
)


class KernelError(Exception):
    """The emulated kernel failed: see the first lines of cuda_emulator.h."""


class EmulatedKernels:
    """Kernels of one source file.

    `removable` are texts of the source. A launch can leave out the statement that a text begins
    with.
    """

    def __init__(
        self,
        source: str,
        kernels: Mapping[str, str],  # to the type of the request
        folder: Path,
        defines: Sequence[str] = (),
        removable: Sequence[str] = (),
    ) -> None:
        for number, text in enumerate(removable, start=1):
            source = _make_removable(source, text, number)
        entries = "".join(_entry(name, kind) for name, kind in kernels.items())
        program, library = folder / "kernels.cpp", folder / "kernels.so"
        program.write_text(EMULATOR.read_text() + translate(source) + entries)
        options = [*FLAGS, *(f"-D{each}" for each in defines), str(program), "-o", str(library)]
        done = subprocess.run(
            [find_compiler() or "c++", *options], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        self._library = ctypes.CDLL(str(library))

    def launch(
        self,
        name: str,
        grid: tuple[int, int, int],
        num_threads: int,
        request: ctypes.Structure,
        seed: int = 0,  # of the schedule
        removed: int = 0,  # number of a removable statement, from 1 on
    ) -> None:
        function = self._library[f"launch_{name}"]
        function.restype = ctypes.c_char_p
        error: bytes = function(ctypes.byref(request), *grid, num_threads, seed, removed)
        if error:
            raise KernelError(error.decode())


def _make_removable(source: str, text: str, number: int) -> str:
    assert text in source
    statement, rest = text.split(";", 1)
    return source.replace(text, f"(removed == {number} ? (void)0 : {statement});{rest}")


def find_compiler() -> str | None:
    return shutil.which("g++") or shutil.which("c++")


def translate(source: str) -> str:
    """CUDA to C++ after cuda_emulator.h."""
    source = re.sub(r"//[^\n]*", "", source)
    source = re.sub(r"template <int N>\s*DEVICE void wgmma\([^;]*;", "", source)
    source = re.sub(r"template <> DEVICE void wgmma<.*?\n}\n", "", source, flags=re.DOTALL)
    source = source.replace("extern __shared__", "extern")
    source = source.replace('extern "C" __global__', "static")  # without entry: not compiled
    parts, end = [], 0
    for found in re.finditer(r"\basm(?: volatile)?\(", source):
        close = _closing(source, found.end() - 1)
        parts += [source[end : found.start()], _call(source[found.end() : close])]
        end = close + 1
    return "".join([*parts, source[end:]])


def _call(assembly: str) -> str:
    """The call of an instruction's function with its operands."""
    literals = re.match(r'(?:\s*"(?:[^"\\]|\\.)*")+', assembly)
    assert literals is not None
    text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literals[0]))
    if not text or text.startswith(NO_EFFECT):
        return "ptx::nothing()"
    name = next(name for start, name in INSTRUCTIONS.items() if text.startswith(start))
    rest, operands = assembly[literals.end() :], []
    for found in re.finditer(r'"[+=]*\w"\(', rest):
        operands.append(rest[found.end() : _closing(rest, found.end() - 1)])
    return f"ptx::{name}({', '.join(operands)})"


def _closing(text: str, opening: int) -> int:
    """Index of the parenthesis that closes the one at `opening`; strings have none that matter."""
    depth, is_text = 0, False
    for i in range(opening, len(text)):
        is_text ^= text[i] == '"'
        if not is_text:
            depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i
    raise ValueError("the parenthesis is not closed")


def _entry(name: str, kind: str) -> str:
    return (
        f'extern "C" const char* launch_{name}(const {kind}* request, int x, int y, int z,'
        f" int num_threads, unsigned seed, int number) {{\n"
        f"    removed = number;\n"
        f"    return launch<const {kind}>({name}, *request, {{x, y, z}}, num_threads, seed);\n}}\n"
    )
