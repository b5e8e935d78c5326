"""Triton's hash of itself is computed once and stored. Triton is replaced by a stub."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vivace.backends.cuda_graph.triton_key import store_triton_key

FILES = (
    "runtime/cache.py",
    "compiler/compiler.py",
    "backends/nvidia/compiler.py",
    "language/extra/math.py",
    "_C/libtriton.so",
)


class StubTriton:
    """A package of files and a hash that counts its calls."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self.num_hashed = 0
        for name in FILES:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)

    def start(self) -> str:
        """Store the key as a new process does; returns the key that Triton then uses."""
        cache: Any = ModuleType("triton.runtime.cache")
        runtime: Any = ModuleType("triton.runtime")
        cache.__file__ = str(self.folder / "runtime/cache.py")
        cache.triton_key = self._hash
        runtime.cache = cache
        self.monkeypatch.setitem(sys.modules, "triton", ModuleType("triton"))
        self.monkeypatch.setitem(sys.modules, "triton.runtime", runtime)
        self.monkeypatch.setitem(sys.modules, "triton.runtime.cache", cache)
        store_triton_key()
        return str(cache.triton_key())

    def _hash(self) -> str:
        self.num_hashed += 1
        return "3.6.0" + "-".join((self.folder / name).read_text() for name in FILES)


@pytest.fixture
def triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StubTriton:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return StubTriton(tmp_path / "triton", monkeypatch)


def test_second_process_does_not_hash_again(triton: StubTriton) -> None:
    key = triton.start()
    num_hashed = triton.num_hashed
    assert triton.start() == key
    assert triton.num_hashed == num_hashed


@pytest.mark.parametrize("name", FILES)
def test_changed_file_is_hashed_again(triton: StubTriton, name: str) -> None:
    key = triton.start()
    (triton.folder / name).write_text("changed")
    assert triton.start() != key


def test_file_with_another_time_is_hashed_again(triton: StubTriton) -> None:
    triton.start()
    num_hashed = triton.num_hashed
    os.utime(triton.folder / FILES[-1], ns=(1, 1))
    triton.start()
    assert triton.num_hashed > num_hashed


def test_new_file_is_hashed_again(triton: StubTriton) -> None:
    triton.start()
    num_hashed = triton.num_hashed
    (triton.folder / "language/more.py").write_text("more")
    triton.start()
    assert triton.num_hashed > num_hashed


def test_damaged_entry_is_hashed_again(triton: StubTriton, tmp_path: Path) -> None:
    key = triton.start()
    [entry] = (tmp_path / "cache").rglob("*.triton")
    entry.write_bytes(entry.read_bytes()[:-1])
    num_hashed = triton.num_hashed
    assert triton.start() == key
    assert triton.num_hashed > num_hashed
