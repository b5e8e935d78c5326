"""`vivace read`: what it refuses before a model is loaded, and a book from file to file."""

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
from vivace.books.output import FORMATS
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
    monkeypatch.setattr("vivace.tts.build_backend", lambda *_: backend)
    monkeypatch.setattr("tests.support.scripted_tts.NUM_CODEBOOKS", 6)
    return backend


def test_a_list_needs_no_model(book: Path, capsys: Captured, no_model: None) -> None:
    assert run_here("read", book, "--list") == 0
    told = capsys.readouterr()
    assert told.out.splitlines() == [
        "a book: 2 chapters, 37 characters",
        "   1  Chapter 1 (22)",
        "   2  Chapter 2 (15)",
    ]
    assert told.err == "7 words to speak; left out: none\n"
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


# -- the format --------------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["x.xyz", "{n}.xyz"])
def test_unknown_file_ending_lists_every_format_of_a_book(
    book: Path, capsys: Captured, no_model: None, output: str
) -> None:
    assert run_here("read", book, "-o", output) == 1
    message = capsys.readouterr().err
    assert ".m4b" in message
    assert message.rstrip().endswith(f"name it with one of: {', '.join(FORMATS)}")


# -- all words ---------------------------------------------------------------------------------


def test_words_that_are_left_out_are_printed(
    book: Path, capsys: Captured, backend: ScriptedSpeech
) -> None:
    Path("b.md").write_text("One two.\n\n```\nx = 1\n```\n\n[Three](http://four.org)\n")
    assert run_here("read", "b.md", "-o", "b.wav", "--device", "cpu") == 0
    told = capsys.readouterr().err
    assert "3 words to speak; left out: 2 in code, 1 in link addresses\n" in told
    assert run_here("read", "b.md", "-o", "c.wav", "--device", "cpu", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["words"], facts["left_out"]) == (3, {"code": 2, "link addresses": 1})


def test_lost_words_fail_before_a_model_is_loaded(
    book: Path, capsys: Captured, no_model: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vivace.books.text.split_wrapped", lambda lines: lines[1:])
    assert run_here("read", book) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "the first difference is at 'One.'" in told


def test_text_that_the_model_refuses_is_found_before_anything_is_spoken(
    book: Path, backend: ScriptedSpeech, capsys: Captured
) -> None:
    book.write_text("Chapter 1\n\nOne.\n\nChapter 2\n\nTwo.\n\nПривет\n\n[pause 99s] x.\n")
    assert run_here("read", book, "--device", "cpu") == 1
    told = capsys.readouterr().err
    assert "2 passages of the book cannot be spoken: chapter 2 (Chapter 2), paragraph 3" in told
    assert "'Привет'" in told
    assert "paragraph 4, '[pause 99s] x.'" in told
    assert backend.num_admitted == 0
    assert not Path("a book.m4b.parts").exists()


def test_letters_that_the_model_does_not_read_are_skipped_on_request(
    book: Path, backend: ScriptedSpeech, capsys: Captured
) -> None:
    book.write_text("One.\n\nПривет\n\nTwo мир.\n")
    command = ("read", book, "--device", "cpu", "--on-unsupported", "skip")
    assert run_here(*command, "-o", "b.wav", "--quiet") == 0
    assert "skipped 9 characters" in capsys.readouterr().err
    assert backend.num_admitted == 2
    assert run_here(*command, "-o", "c.wav", "--json") == 0
    assert json.loads(capsys.readouterr().out)["skipped"] == ["Привет", "мир"]


def test_epub_without_lxml_is_one_line_that_says_how_to_install_it(
    book: Path, backend: ScriptedSpeech, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lxml", None)
    Path("b.html").write_text("<p>One.</p>")
    assert run_here("read", "b.html") == 1
    message = "vivace: reading EPUB and HTML needs lxml: pip install 'vivace[books]'\n"
    assert capsys.readouterr().err == message
    assert run_here("read", book, "--device", "cpu") == 0  # plain text needs no lxml


def test_words_that_were_not_spoken_are_reported_with_exit_code_3(
    book: Path, backend: ScriptedSpeech, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Audio, "missing_words", property(lambda self: ("One", "two")))
    assert run_here("read", book, "-o", "b.wav", "--device", "cpu", "--quiet") == 3
    told = capsys.readouterr().err.splitlines()
    assert told[0] == (
        "vivace: chapter 1 (Chapter 1), 'Chapter 1': not spoken: One, two, One, two, One, two"
    )
    assert len(told) == 2
    assert run_here("read", book, "-o", "c.wav", "--device", "cpu", "--json") == 3
    assert json.loads(capsys.readouterr().out)["missing_words"] == ["One", "two"] * 5


# -- going on ----------------------------------------------------------------------------------


def test_parts_made_with_other_options_are_not_used(
    book: Path, backend: ScriptedSpeech, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every run but the second has an option, a file or a version that changes the sound."""
    Path("one.toml").write_text('One = "Won"\n')
    Path("two.toml").write_text('One = "Wan"\n')
    num_spoken = []

    def read(*options: str, lexicon: str = "one.toml") -> None:
        command = ["read", str(book), "-o", "b.wav", "--device", "cpu", "--quiet", "--keep-parts"]
        assert run_here(*command, "--force", "--lexicon", lexicon, *options) == 0
        num_spoken.append(backend.num_admitted)

    read()
    read()  # the control: the same options use the parts
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


def test_interrupt_ends_the_progress_line_before_the_message(
    book: Path, backend: ScriptedSpeech, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: Any) -> Iterator[Progress]:
        yield Progress(0, 37, 0, None)
        raise KeyboardInterrupt

    monkeypatch.setattr(BookReader, "read", read)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run_here("read", book, "--device", "cpu") == 130
    lines = capsys.readouterr().err.split("\n")
    assert lines[-4].endswith("\r0 %: 1 of 2, Chapter 1")
    assert lines[-3].startswith("what is made is kept in a book.m4b.parts")
    assert lines[-2:] == ["vivace: interrupted", ""]
