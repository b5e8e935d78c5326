"""Tests of `vivace read`: checks before the model loads, and complete audiobooks."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import pytest

from tests.support.cli_harness import Captured, run_here
from tests.support.scripted_tts import Plan, ScriptedSpeech
from vivace.audio.clip import Audio
from vivace.audio.formats import AUDIOBOOK_FORMATS
from vivace.books.reader import BookReader, Progress

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
    monkeypatch.setattr("vivace.engine.checkpoints.loading.build_backend", lambda *_: backend)
    monkeypatch.setattr("tests.support.scripted_tts.NUM_CODEBOOKS", 6)
    return backend


def test_list_needs_no_model(book: Path, capsys: Captured, no_model: None) -> None:
    assert run_here("read", book, "--list") == 0
    report = capsys.readouterr()
    assert report.out.splitlines() == [
        "a book: 2 chapters, 37 characters",
        "   1  Chapter 1 (22)",
        "   2  Chapter 2 (15)",
    ]
    assert report.err == "7 words to speak; left out: none\n"
    assert run_here("read", book, "--list", "--json", "--title", "T", "--author", "A") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["title"], facts["author"], len(facts["chapters"])) == ("T", "A", 2)
    assert (facts["words"], facts["left_out"]) == (7, {})


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
        (["a book.txt", "-o", "no/there.m4b"], "the folder 'no' does not exist"),
        (["a book.txt", "-o", "x.doc"], "'x.doc': unknown file extension"),
        (["a book.txt", "-o", "{x}.mp3"], "only {n} and {title} are allowed"),
        (["a book.txt", "-o", "out", "--format", "doc"], "unknown file extension"),
        (["a book.txt", "--loudness", "0"], "-40 to -5 LUFS"),
        (["a book.txt", "--cover", "a book.txt"], "must be a JPEG or PNG"),
        (["a book.txt", "--speed", "9"], "speed"),
    ],
)
def test_invalid_arguments_fail_before_model_loads(
    book: Path, capsys: Captured, no_model: None, arguments: list[str], words: str
) -> None:
    (book.parent / "there.m4b").write_bytes(b"")
    assert run_here("read", *arguments) == 1
    assert words in capsys.readouterr().err


def test_max_frames_is_usage_error(book: Path, no_model: None) -> None:
    with pytest.raises(SystemExit):
        run_here("read", book, "--max-frames", "5")


def test_read_writes_audiobook(book: Path, backend: ScriptedSpeech, capsys: Captured) -> None:
    (book.parent / "c.png").write_bytes(PNG)
    assert run_here("read", book, "--author", "Me", "--cover", "c.png", "--device", "cpu") == 0
    report = capsys.readouterr().err
    assert "0 %: chapter 1 of 2, Chapter 1" in report
    assert "left: chapter 2 of 2, Chapter 2" in report
    assert "at -18 LUFS" in report
    with av.open("a book.m4b") as file:
        assert [each["metadata"]["title"] for each in file.chapters()] == ["Chapter 1", "Chapter 2"]
        assert (file.metadata["title"], file.metadata["artist"]) == ("a book", "Me")
        assert [stream.type for stream in file.streams].count("video") == 1
    assert not Path("a book.m4b.parts").exists()


def test_existing_segments_are_used(book: Path, backend: ScriptedSpeech, capsys: Captured) -> None:
    assert run_here("read", book, "-o", "out", "--keep-parts", "--device", "cpu", "--quiet") == 0
    num_spoken = backend.num_admitted
    files = {path.name: path.read_bytes() for path in Path("out").iterdir()}
    assert sorted(files) == ["01 Chapter 1.mp3", "02 Chapter 2.mp3"]
    assert run_here("read", book, "-o", "out", "--force", "--device", "cpu") == 0
    assert backend.num_admitted == num_spoken  # no segment is spoken twice
    assert "2 of 2 segments are already in" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in Path("out").iterdir()} == files


# -- format ------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["x.xyz", "{n}.xyz"])
def test_unknown_extension_lists_audiobook_formats(
    book: Path, capsys: Captured, no_model: None, output: str
) -> None:
    assert run_here("read", book, "-o", output) == 1
    extensions = [each for known in AUDIOBOOK_FORMATS.values() for each in known.extensions]
    assert ".m4b" in extensions
    assert capsys.readouterr().err.rstrip().endswith(f"use one of: {', '.join(extensions)}")


# -- words -------------------------------------------------------------------------------------


def test_left_out_words_are_printed(book: Path, capsys: Captured, backend: ScriptedSpeech) -> None:
    Path("b.md").write_text("One two.\n\n```\nx = 1\n```\n\n[Three](http://four.org)\n")
    assert run_here("read", "b.md", "-o", "b.wav", "--device", "cpu") == 0
    report = capsys.readouterr().err
    assert "3 words to speak; left out: 2 in code, 1 in link addresses\n" in report
    assert run_here("read", "b.md", "-o", "c.wav", "--device", "cpu", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["words"], facts["left_out"]) == (3, {"code": 2, "link addresses": 1})


def test_lost_words_fail_before_model_loads(
    book: Path, capsys: Captured, no_model: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vivace.books.text._split_wrapped", lambda lines: lines[1:])
    assert run_here("read", book) == 1
    report = capsys.readouterr().err
    assert report.count("\n") == 1
    assert "the first difference is at 'One.'" in report


def test_unsupported_text_fails_before_speech(
    book: Path, backend: ScriptedSpeech, capsys: Captured
) -> None:
    book.write_text("Chapter 1\n\nOne.\n\nChapter 2\n\nTwo.\n\nПривет\n\n[pause 99s] x.\n")
    assert run_here("read", book, "--device", "cpu") == 1
    report = capsys.readouterr().err
    assert "2 passages of the book cannot be spoken: chapter 2 (Chapter 2), paragraph 3" in report
    assert "'Привет'" in report
    assert "paragraph 4, '[pause 99s] x.'" in report
    assert backend.num_admitted == 0
    assert not Path("a book.m4b.parts").exists()


def test_unsupported_characters_are_skipped_on_request(
    book: Path, backend: ScriptedSpeech, capsys: Captured
) -> None:
    book.write_text("One.\n\nПривет\n\nTwo мир.\n")
    command = ("read", book, "--device", "cpu", "--on-unsupported", "skip")
    assert run_here(*command, "-o", "b.wav", "--quiet") == 0
    assert "skipped 9 characters" in capsys.readouterr().err
    assert backend.num_admitted == 2
    assert run_here(*command, "-o", "c.wav", "--json") == 0
    assert json.loads(capsys.readouterr().out)["skipped"] == ["Привет", "мир"]


def test_epub_without_lxml_prints_install_hint(
    book: Path, backend: ScriptedSpeech, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lxml", None)
    Path("b.html").write_text("<p>One.</p>")
    assert run_here("read", "b.html") == 1
    message = "vivace: reading EPUB and HTML needs lxml; run: pip install '.[books]'\n"
    assert capsys.readouterr().err == message
    assert run_here("read", book, "--device", "cpu") == 0  # plain text needs no lxml


def test_missing_words_are_reported_with_exit_code_3(
    book: Path, backend: ScriptedSpeech, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Audio, "missing_words", property(lambda self: ("One", "two")))
    assert run_here("read", book, "-o", "b.wav", "--device", "cpu", "--quiet") == 3
    report = capsys.readouterr().err.splitlines()
    assert report[0] == (
        "vivace: chapter 1 (Chapter 1), 'Chapter 1': words not spoken: One, two, One, two, One, two"
    )
    assert len(report) == 2
    assert run_here("read", book, "-o", "c.wav", "--device", "cpu", "--json") == 3
    assert json.loads(capsys.readouterr().out)["missing_words"] == ["One", "two"] * 5


# -- continuing --------------------------------------------------------------------------------


@pytest.mark.ci
def test_segments_of_other_options_are_not_used(
    book: Path, backend: ScriptedSpeech, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every run except the second changes an option, a file or the version."""
    Path("one.toml").write_text('One = "Won"\n')
    Path("two.toml").write_text('One = "Wan"\n')
    num_spoken = []

    def read(*options: str, lexicon: str = "one.toml") -> None:
        command = ["read", str(book), "-o", "b.wav", "--device", "cpu", "--quiet", "--keep-parts"]
        assert run_here(*command, "--force", "--lexicon", lexicon, *options) == 0
        num_spoken.append(backend.num_admitted)

    read()
    read()  # control: equal options use the segments
    read(lexicon="two.toml")
    Path("one.toml").write_text('One = "Wonn"\n')
    read()
    for option in (("--seed", "2"), ("--speed", "1.5"), ("--temperature", "0.5")):
        read(*option)
    read("--voice", "michael")
    read("--revision", "other")
    monkeypatch.setattr("vivace.cli.read.__version__", "another")
    read()
    num_passages = num_spoken[0]
    assert num_spoken == [num_passages * max(1, number) for number in range(len(num_spoken))]


def test_interrupt_keeps_progress_line_before_message(
    book: Path, backend: ScriptedSpeech, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: Any) -> Iterator[Progress]:
        yield Progress(0, 37, 0, None)
        raise KeyboardInterrupt

    monkeypatch.setattr(BookReader, "read", read)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run_here("read", book, "--device", "cpu") == 130
    lines = capsys.readouterr().err.split("\n")
    assert lines[-4].endswith("\r0 %: chapter 1 of 2, Chapter 1")
    assert lines[-3].startswith("finished segments are kept in a book.m4b.parts")
    assert lines[-2:] == ["vivace: interrupted", ""]
