"""benchmarks/book.py: chapters, kills, and a small book with the embedded voice."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.project import ROOT, load_script
from vivace.books.open import open_book


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return load_script(ROOT / "benchmarks" / "book.py")


def sentences(count: int) -> list[str]:
    return [f"This is sentence number {number}." for number in range(count)]


def test_text_has_chapters_and_paragraphs(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(script.write_text(sentences(460)))
    book = open_book(tmp_path / "book.txt")
    assert [chapter.title for chapter in book.chapters] == ["Chapter 1", "Chapter 2", "Chapter 3"]
    assert [len(chapter.paragraphs) for chapter in book.chapters] == [46, 46, 3]


def test_memory_is_none_after_process_exit(script: ModuleType) -> None:
    memory = script.memory_mib(os.getpid())
    assert 10 < memory["rss_mib"] <= memory["most_rss_mib"]
    pid = os.posix_spawnp("true", ["true"], os.environ)
    os.waitpid(pid, 0)
    assert script.memory_mib(pid) is None


def test_reading_is_killed_at_share_and_restarted(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep(_: object) -> subprocess.Popen[str]:
        return subprocess.Popen(["sleep", "600"], stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr(script.Reading, "_start", sleep)
    reading = script.Reading(tmp_path / "book.txt", tmp_path / "b.m4b", 4, [(0.5, 0.0)])
    parts = tmp_path / "b.m4b.parts"
    parts.mkdir()
    with reading.process as first:
        (parts / "one.pcm").touch()
        assert not reading.poll()
        assert not reading.killed
        (parts / "two.pcm").touch()
        assert not reading.poll()
    assert first.returncode == -9
    assert [(each["pieces"], each["status"]) for each in reading.killed] == [(2, -9)]
    assert sorted(reading.kept) == ["one.pcm", "two.pcm"]
    with reading.process as second:
        assert not reading.poll()  # no other kill is planned
        second.kill()


@pytest.mark.slow
def test_killed_book_equals_uninterrupted_book(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "MAX_DELAY_S", 0.5)
    report = script.compare(script.write_text(sentences(60)), tmp_path / "out", [0.3, 0.6])
    killed = report["killed"]
    assert report["is_equal"]
    assert [each["status"] for each in killed["kills"]] == [-9, -9]
    assert killed["pieces_made_twice"] == 0
    assert killed["sha256_of_samples"] == report["whole"]["sha256_of_samples"]
