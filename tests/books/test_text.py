"""Tests of reading plain text, markdown and HTML files as books."""

from __future__ import annotations

from pathlib import Path

import pytest

from vivace.books.book import Book
from vivace.books.open import open_book
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


def test_plain_text_heading_starts_chapter(tmp_path: Path) -> None:
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
def test_plain_text_line_is_recognized_as_heading(
    tmp_path: Path, line: str, is_heading: bool
) -> None:
    book = open_text(tmp_path, f"Before.\n\n{line}\n\nAfter.\n")
    assert (len(book.chapters) == 2) is is_heading


def test_plain_text_without_blank_lines_has_one_paragraph_per_line(tmp_path: Path) -> None:
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


def test_markdown_heading_starts_chapter(tmp_path: Path) -> None:
    book = open_text(tmp_path, MARKDOWN, "b.md")
    assert (book.title, book.author) == ("The Book", "Somebody")
    assert outline(book) == [
        ("The Book", ["The Book", "Before."]),
        ("One", ["One", "Text with marks in it.", "Inside", "More."]),
        ("Two", ["Two", "Last."]),
    ]


def test_markdown_chapters_use_highest_repeated_heading_level(tmp_path: Path) -> None:
    book = open_text(tmp_path, "# One\n\na\n\n## Inside\n\nb\n\n# Two\n\nc\n", "b.md")
    assert [title for title, _ in outline(book)] == ["One", "Two"]
    assert [title for title, _ in outline(open_text(tmp_path, "Only words.", "c.md"))] == ["c"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "no words"),
        ("a.txt", b"... \n\n* * *\n", "no words"),
        ("a.txt", b"caf\xe9", "not UTF-8"),
        ("a.txt", b"a\0b", "NUL"),
        ("a.md", b"```\ncode\n```\n", "no words"),
        ("a.pdf", b"%PDF", "use a .txt, .md, .html or .epub file"),
        ("a.epub", b"no zip", "not an EPUB"),
    ],
)
def test_open_book_of_invalid_file_raises_request_error(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        open_text(tmp_path, content, name)


def test_open_book_of_missing_path_or_folder_raises_request_error(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no such file"):
        open_book(tmp_path / "nowhere.txt")
    with pytest.raises(RequestError, match="a folder"):
        open_book(tmp_path)
    for code in ("utf-8-sig", "utf-16"):
        assert open_text(tmp_path, "Ä.\r\n\r\nB.".encode(code)).num_chars == 4


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
def test_plain_text_verse_and_list_items_are_paragraphs(
    tmp_path: Path, text: str, expected: list[str]
) -> None:
    assert outline(open_text(tmp_path, text))[0][1] == expected


def test_html_heading_starts_chapter(tmp_path: Path) -> None:
    content = "<h1>Book</h1><h2>One</h2><p>a</p><h2>Two</h2><p>b</p>"
    book = open_text(tmp_path, content, "b.html")
    assert book.title == "Book"
    assert outline(book) == [("One", ["Book", "One", "a"]), ("Two", ["Two", "b"])]
