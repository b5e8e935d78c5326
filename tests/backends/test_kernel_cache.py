"""The cache of compiled kernels: keys, damaged files, folders that cannot be written."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from vivace.backends import kernel_cache
from vivace.backends.kernel_cache import Comparison, cache_key, read_entry, write_entry

GPU = torch.device("cuda")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "vivace" / "kernels"


def test_entry_is_read_back(folder: Path) -> None:
    assert read_entry("one.cubin") is None
    write_entry("one.cubin", b"code")
    assert read_entry("one.cubin") == b"code"
    write_entry("one.cubin", b"")
    assert read_entry("one.cubin") == b""


@pytest.mark.parametrize("length", [0, 10, 32, 35])
def test_truncated_entry_counts_as_missing(folder: Path, length: int) -> None:
    write_entry("one.cubin", b"code")
    path = folder / "one.cubin"
    path.write_bytes(path.read_bytes()[:length])
    assert read_entry("one.cubin") is None


@pytest.mark.parametrize("at", [0, 31, 32, 35])
def test_changed_entry_counts_as_missing(folder: Path, at: int) -> None:
    write_entry("one.cubin", b"code")
    stored = bytearray((folder / "one.cubin").read_bytes())
    stored[at] ^= 1
    (folder / "one.cubin").write_bytes(stored)
    assert read_entry("one.cubin") is None


def test_folder_that_cannot_be_written_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    write_entry("one.cubin", b"code")
    assert read_entry("one.cubin") is None


def test_key_depends_on_every_part_and_on_their_borders() -> None:
    keys = [cache_key(parts) for parts in (["a", "b"], ["ab"], ["a", "b", ""], ["b", "a"])]
    assert len(set(keys)) == len(keys)
    assert cache_key(["a", "b"]) == keys[0]


def test_writers_at_once_leave_a_whole_entry(folder: Path) -> None:
    """As processes that start at once: every writer locks its own file."""
    contents = [bytes([number]) * 100_000 for number in range(3)]
    write_entry("one.cubin", contents[0])

    def write_and_read(content: bytes) -> bool:
        for _ in range(20):
            write_entry("one.cubin", content)
            if read_entry("one.cubin") not in contents:
                return False
        return True

    with ThreadPoolExecutor(len(contents)) as pool:
        assert all(pool.map(write_and_read, contents))
    assert [path.name for path in folder.iterdir()] == ["one.cubin"]


# -- comparisons --------------------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The facts that a comparison depends on."""
    facts = {"gpu": ("H200", "(9, 0, 132)", "13.0"), "sources": "abc", "triton": "3.6.0"}
    monkeypatch.setattr(kernel_cache, "_describe_gpu", lambda device: facts["gpu"])
    monkeypatch.setattr(kernel_cache, "_source_hash", lambda: facts["sources"])
    monkeypatch.setattr(kernel_cache, "_triton_version", lambda: facts["triton"])
    return facts


def test_passed_comparison_is_remembered_for_the_same_kernels(machine: dict[str, Any]) -> None:
    assert not Comparison(["fused", "0.6B"], GPU).has_passed
    Comparison(["fused", "0.6B"], GPU).note_passed()
    assert Comparison(["fused", "0.6B"], GPU).has_passed
    assert not Comparison(["fused", "1.7B"], GPU).has_passed
    assert not Comparison(["megakernel", "0.6B"], GPU).has_passed


@pytest.mark.parametrize(
    "change",
    [{"gpu": ("H100", "(9, 0, 132)", "13.0")}, {"sources": "abd"}, {"triton": "3.7.0"}],
    ids=["gpu", "sources", "triton"],
)
def test_passed_comparison_is_repeated_on_another_machine_or_build(
    machine: dict[str, Any], change: dict[str, Any]
) -> None:
    Comparison(["fused"], GPU).note_passed()
    machine.update(change)
    assert not Comparison(["fused"], GPU).has_passed


def test_damaged_note_repeats_the_comparison(machine: dict[str, Any], folder: Path) -> None:
    Comparison(["fused"], GPU).note_passed()
    [path] = folder.iterdir()
    path.write_bytes(b"passed\n")
    assert not Comparison(["fused"], GPU).has_passed


def test_comparison_on_a_cpu_is_never_remembered(folder: Path) -> None:
    comparison = Comparison(["plain"], torch.device("cpu"))
    comparison.note_passed()
    assert not comparison.has_passed
    assert not folder.exists()


def test_source_hash_covers_all_kernels(tmp_path: Path) -> None:
    found = kernel_cache._source_hash.__wrapped__()
    assert len(found) == 64
    names = {path.suffix for path in Path(kernel_cache.__file__).parent.rglob("*")}
    assert {".py", ".cu", ".cuh"} <= names
