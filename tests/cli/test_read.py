"""`vivace read`: what it refuses before a model is loaded, and a book from file to file."""

from __future__ import annotations

import json
from pathlib import Path

import av
import pytest
from harness import Captured, run_here
from scripted_tts import Plan, ScriptedSpeech

TEXT = "Chapter 1\n\nOne.\n\n* * *\n\nTwo.\n\nChapter 2\n\nThree.\n"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a book.txt").write_text(TEXT)
    return tmp_path / "a book.txt"


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> ScriptedSpeech:
    backend = ScriptedSpeech(default=Plan(8), max_streams=4)
    monkeypatch.setattr("vivace.tts.build_backend", lambda *_: backend)
    monkeypatch.setattr("scripted_tts.NUM_CODEBOOKS", 6)
    return backend


def test_a_list_needs_no_model(book: Path, capsys: Captured, no_model: None) -> None:
    assert run_here("read", book, "--list") == 0
    assert capsys.readouterr().out.splitlines() == [
        "a book: 2 chapters, 37 characters",
        "   1  Chapter 1 (22)",
        "   2  Chapter 2 (15)",
    ]
    assert run_here("read", book, "--list", "--json", "--title", "T", "--author", "A") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["title"], told["author"], len(told["chapters"])) == ("T", "A", 2)


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("vivace.cli.read.load_model", fail)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.txt"], "no such file"),
        (["a book.txt", "-o", "there.m4b"], "there.m4b exists"),
        (["a book.txt", "-o", "x.doc"], "cannot write 'x.doc'"),
        (["a book.txt", "-o", "{x}.mp3"], "a pattern has {n}"),
        (["a book.txt", "-o", "out", "--format", "doc"], "cannot write"),
        (["a book.txt", "--loudness", "0"], "-40 to -5 LUFS"),
        (["a book.txt", "--cover", "a book.txt"], "no JPEG or PNG"),
        (["a book.txt", "--speed", "9"], "speed"),
    ],
)
def test_what_cannot_be_made_is_refused_before_a_model_is_loaded(
    book: Path, capsys: Captured, no_model: None, arguments: list[str], words: str
) -> None:
    (book.parent / "there.m4b").write_bytes(b"")
    assert run_here("read", *arguments) == 1
    assert words in capsys.readouterr().err


def test_a_limit_of_frames_is_no_way_to_read_a_book(book: Path, no_model: None) -> None:
    with pytest.raises(SystemExit):
        run_here("read", book, "--max-frames", "5")


def test_a_book_becomes_an_audiobook(book: Path, backend: ScriptedSpeech, capsys: Captured) -> None:
    (book.parent / "c.png").write_bytes(PNG)
    assert run_here("read", book, "--author", "Me", "--cover", "c.png", "--device", "cpu") == 0
    told = capsys.readouterr().err
    assert "0 %: 1 of 2, Chapter 1" in told
    assert "left: 2 of 2, Chapter 2" in told
    assert "at -18 LUFS" in told
    with av.open("a book.m4b") as file:
        assert [each["metadata"]["title"] for each in file.chapters()] == ["Chapter 1", "Chapter 2"]
        assert (file.metadata["title"], file.metadata["artist"]) == ("a book", "Me")
        assert [stream.type for stream in file.streams].count("video") == 1
    assert not Path("a book.m4b.parts").exists()


def test_parts_that_are_there_are_used(
    book: Path, backend: ScriptedSpeech, capsys: Captured
) -> None:
    assert run_here("read", book, "-o", "out", "--keep-parts", "--device", "cpu", "--quiet") == 0
    num_spoken = backend.num_admitted
    files = {path.name: path.read_bytes() for path in Path("out").iterdir()}
    assert sorted(files) == ["01 Chapter 1.mp3", "02 Chapter 2.mp3"]
    assert run_here("read", book, "-o", "out", "--force", "--device", "cpu") == 0
    assert backend.num_admitted == num_spoken  # nothing is made twice
    assert "2 of 2 pieces are made already" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in Path("out").iterdir()} == files
