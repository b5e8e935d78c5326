"""Chapters of plain text and markdown, and the pieces of a book."""

from __future__ import annotations

from pathlib import Path

import pytest

from vivace.books.book import Book, Chapter, Paragraph, open_book
from vivace.books.pieces import CHAPTER_GAP_S, MAX_PIECE_CHARS, cut_book
from vivace.errors import RequestError


def outline(book: Book) -> list[tuple[str, list[str]]]:
    return [(each.title, [part.text for part in each.paragraphs]) for each in book.chapters]


def open_text(folder: Path, content: str | bytes, name: str = "a book.txt") -> Book:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return open_book(path)


PLAIN = """By Nobody

CHAPTER I.
Down the Hole

It was late
and dark.

* * *

She said: Chapter 2 is next, and
that is that.

Part Two

Chapter 2: The Garden

Green.

Epilogue

The end.
"""


def test_lines_that_name_chapters_begin_them(tmp_path: Path) -> None:
    assert outline(open_text(tmp_path, PLAIN)) == [
        ("a book", ["By Nobody"]),
        (
            "CHAPTER I. Down the Hole",
            [
                "CHAPTER I. Down the Hole",
                "It was late and dark.",
                "* * *",
                "She said: Chapter 2 is next, and that is that.",
            ],
        ),
        ("Chapter 2: The Garden", ["Part Two", "Chapter 2: The Garden", "Green."]),
        ("Epilogue", ["Epilogue", "The end."]),
    ]


@pytest.mark.parametrize(
    ("line", "is_heading"),
    [
        ("Chapter 12", True),
        ("CHAPTER XII", True),
        ("Chapter Twenty-One", True),
        ("Chapter the First", True),
        ("Chapter 3 — A Walk", True),
        ("Kapitel 4", True),
        ("第十二章 花园", True),
        ("제 3 장", True),
        ("Prologue", True),
        ("Introduction: Why", True),
        ("Chapter and verse of a long discussion", False),
        ("Part of it was true.", False),
        ("Book", False),
        ("Introductions were made", False),
        ("He read chapter 3", False),
        ("Chapter 1 " + "x" * 90, False),
    ],
)
def test_what_is_a_heading(tmp_path: Path, line: str, is_heading: bool) -> None:
    book = open_text(tmp_path, f"Before.\n\n{line}\n\nAfter.\n")
    assert (len(book.chapters) == 2) is is_heading


def test_text_without_blank_lines_has_a_paragraph_a_line(tmp_path: Path) -> None:
    book = open_text(tmp_path, "Chapter 1\nOne.\nTwo.\nChapter 2\nThree.\n")
    assert outline(book) == [
        ("Chapter 1", ["Chapter 1", "One.", "Two."]),
        ("Chapter 2", ["Chapter 2", "Three."]),
    ]


MARKDOWN = """---
title: "The Book"
author: Somebody
---
# The Book

Before.

## One

Text with **marks**
in it.

```python
# no chapter
## nor here
```

### Inside

More.

Two
---

Last.
"""


def test_headings_of_markdown_begin_chapters(tmp_path: Path) -> None:
    book = open_text(tmp_path, MARKDOWN, "b.md")
    assert (book.title, book.author) == ("The Book", "Somebody")
    assert outline(book) == [
        ("The Book", ["The Book", "Before."]),
        ("One", ["One", "Text with marks in it.", "Inside", "More."]),
        ("Two", ["Two", "Last."]),
    ]


def test_markdown_whose_chapters_are_of_the_first_level(tmp_path: Path) -> None:
    book = open_text(tmp_path, "# One\n\na\n\n## Inside\n\nb\n\n# Two\n\nc\n", "b.md")
    assert [title for title, _ in outline(book)] == ["One", "Two"]
    assert [title for title, _ in outline(open_text(tmp_path, "Only words.", "c.md"))] == ["c"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"", "no words"),
        ("a.txt", b"... \n\n* * *\n", "no words"),
        ("a.txt", b"caf\xe9", "not UTF-8"),
        ("a.txt", b"a\0b", "NUL"),
        ("a.md", b"```\ncode\n```\n", "no words"),
        ("a.pdf", b"%PDF", "try .txt, .md, .html or .epub"),
        ("a.epub", b"no zip", "no EPUB"),
    ],
)
def test_what_is_no_book_is_an_error(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        open_text(tmp_path, content, name)


def test_a_book_is_a_file(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no such file"):
        open_book(tmp_path / "nowhere.txt")
    with pytest.raises(RequestError, match="a folder"):
        open_book(tmp_path)
    for code in ("utf-8-sig", "utf-16"):
        assert open_text(tmp_path, "Ä.\r\n\r\nB.".encode(code)).num_chars == 4


def test_pieces_hold_every_word_once_and_are_bounded() -> None:
    sentences = [f"This is sentence number {number} of a long paragraph." for number in range(200)]
    long = Paragraph(" ".join(sentences))
    chapters = (
        Chapter("One", (Paragraph("One", is_heading=True), long, Paragraph("Short."))),
        Chapter("Two", (Paragraph("word " * 1_500),)),
    )
    pieces = cut_book(Book(title="x", chapters=chapters))
    for number, chapter in enumerate(chapters):
        mine = [piece for piece in pieces if piece.chapter == number]
        spoken = " ".join(each.text for piece in mine for each in piece.passages).split()
        assert spoken == " ".join(each.text for each in chapter.paragraphs).split()
        assert [each.gap_s for each in mine[-1].passages][-1] == CHAPTER_GAP_S
    assert max(piece.num_chars for piece in pieces) <= MAX_PIECE_CHARS


def test_the_key_of_a_piece_is_its_words_and_how_they_are_spoken() -> None:
    chapters = (Chapter("One", (Paragraph("a"),)), Chapter("Two", (Paragraph("a"),)))
    one, two = cut_book(Book(title="x", chapters=chapters))
    assert one.key({"seed": 1}) == two.key({"seed": 1})  # the same sound
    assert one.key({"seed": 1}) != one.key({"seed": 2})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Roses are red\nViolets are blue\n\nEnd.", ["Roses are red", "Violets are blue", "End."]),
        ("It was late\nand dark.\n\nEnd.", ["It was late and dark.", "End."]),
        ("To pack:\n- three apples\n- a rope\n  and more\n\nEnd.",
         ["To pack:", "- three apples", "- a rope and more", "End."]),
        ("One\n\n\u3000\n\nTwo", ["One", "Two"]),
    ],
)  # fmt: skip
def test_verses_and_items_of_plain_text_are_blocks(
    tmp_path: Path, text: str, expected: list[str]
) -> None:
    assert outline(open_text(tmp_path, text))[0][1] == expected


def test_html_file_is_read_by_its_headings(tmp_path: Path) -> None:
    content = "<h1>Book</h1><h2>One</h2><p>a</p><h2>Two</h2><p>b</p>"
    book = open_text(tmp_path, content, "b.html")
    assert book.title == "Book"
    assert outline(book) == [("One", ["Book", "One", "a"]), ("Two", ["Two", "b"])]


def test_pieces_that_lose_words_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    book = Book(title="x", chapters=(Chapter("One", (Paragraph("word " * 400),)),))
    assert cut_book(book)  # the control
    monkeypatch.setattr("vivace.books.pieces.split_sentences", lambda text: [text[:100]])
    with pytest.raises(RequestError, match=r"chapter 'One': 80 of 1,600 letters"):
        cut_book(book)


def test_lines_of_a_verse_are_closer_than_paragraphs() -> None:
    paragraphs = (Paragraph("a", is_line=True), Paragraph("b"), Paragraph("c"))
    (piece,) = cut_book(Book(title="x", chapters=(Chapter("x", paragraphs),)))
    gaps = [each.gap_s for each in piece.passages]
    assert gaps == sorted(gaps)
    assert gaps[0] < gaps[1]
