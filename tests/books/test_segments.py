"""Tests of splitting a book into segments."""

from __future__ import annotations

import pytest

from vivace.books.book import Book, Chapter, Paragraph
from vivace.books.segments import CHAPTER_GAP_S, MAX_SEGMENT_CHARS, split_book
from vivace.errors import RequestError


def test_split_book_keeps_every_word_and_limits_segment_length() -> None:
    sentences = [f"This is sentence number {number} of a long paragraph." for number in range(200)]
    long = Paragraph(" ".join(sentences))
    chapters = (
        Chapter("One", (Paragraph("One", is_heading=True), long, Paragraph("Short."))),
        Chapter("Two", (Paragraph("word " * 1_500),)),
    )
    segments = split_book(Book(title="x", chapters=chapters))
    for number, chapter in enumerate(chapters):
        own = [segment for segment in segments if segment.chapter == number]
        spoken = " ".join(each.text for segment in own for each in segment.passages).split()
        assert spoken == " ".join(each.text for each in chapter.paragraphs).split()
        assert [each.gap_s for each in own[-1].passages][-1] == CHAPTER_GAP_S
    assert max(segment.num_chars for segment in segments) <= MAX_SEGMENT_CHARS


def test_segment_key_depends_on_text_and_identity() -> None:
    chapters = (Chapter("One", (Paragraph("a"),)), Chapter("Two", (Paragraph("a"),)))
    one, two = split_book(Book(title="x", chapters=chapters))
    assert one.key({"seed": 1}) == two.key({"seed": 1})
    assert one.key({"seed": 1}) != one.key({"seed": 2})


def test_split_book_that_loses_words_raises_request_error(monkeypatch: pytest.MonkeyPatch) -> None:
    book = Book(title="x", chapters=(Chapter("One", (Paragraph("word " * 400),)),))
    assert split_book(book)  # control: nothing is lost
    monkeypatch.setattr("vivace.books.segments.split_sentences", lambda text: [text[:100]])
    with pytest.raises(RequestError, match=r"chapter 'One': 80 of 1,600 letters"):
        split_book(book)


def test_gap_between_verse_lines_is_shorter_than_between_paragraphs() -> None:
    paragraphs = (Paragraph("a", is_line=True), Paragraph("b"), Paragraph("c"))
    (segment,) = split_book(Book(title="x", chapters=(Chapter("x", paragraphs),)))
    gaps = [each.gap_s for each in segment.passages]
    assert gaps == sorted(gaps)
    assert gaps[0] < gaps[1]
