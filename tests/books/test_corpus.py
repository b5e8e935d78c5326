"""Tests with 100 generated pages: every word reaches the model, in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.book_corpus import (
    damaged_page,
    html_page,
    markdown_page,
    spoken_words,
    write_epub,
)
from vivace.books.html import read_page
from vivace.books.open import open_book
from vivace.books.segments import split_book


def words_for_model(path: Path) -> list[str]:
    segments = split_book(open_book(path))
    return spoken_words([each.text for segment in segments for each in segment.passages])


@pytest.mark.parametrize("seed", range(30))
def test_markdown_page_keeps_every_word(tmp_path: Path, seed: int) -> None:
    content, words = markdown_page(seed)
    (tmp_path / "page.md").write_bytes(content)
    assert words_for_model(tmp_path / "page.md") == words


@pytest.mark.parametrize("seed", range(39))
def test_html_page_keeps_every_word(tmp_path: Path, seed: int) -> None:
    content, words = html_page(seed)
    (tmp_path / "page.html").write_bytes(content)
    assert words_for_model(tmp_path / "page.html") == words


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_damaged_page_keeps_every_word(first: int) -> None:
    for seed in range(first, first + 25):
        source, words = damaged_page(seed)
        text = " ".join(each.text for each in read_page(source, f"page {seed}").paragraphs)
        assert [word for word in words if word not in text] == [], source


def test_epub_of_generated_pages_keeps_every_word(tmp_path: Path) -> None:
    pages = [html_page(seed) for seed in range(100, 139)]
    write_epub(tmp_path / "book.epub", [content for content, _ in pages])
    expected = [word for _, words in pages for word in words]
    assert words_for_model(tmp_path / "book.epub") == expected
