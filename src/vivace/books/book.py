"""A book as chapters of paragraphs, with metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vivace.books.count import count_letters, count_words


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Text that is spoken separately: a paragraph, heading, list item, table row or verse line."""

    text: str
    is_heading: bool = False
    is_line: bool = False  # another line of the same paragraph follows


@dataclass(frozen=True, slots=True)
class Chapter:
    title: str
    paragraphs: tuple[Paragraph, ...]

    @property
    def num_chars(self) -> int:
        return sum(len(each.text) for each in self.paragraphs)

    @property
    def num_letters(self) -> int:
        return sum(count_letters(each.text) for each in self.paragraphs)

    @property
    def num_words(self) -> int:
        return sum(count_words(each.text) for each in self.paragraphs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    title: str
    chapters: tuple[Chapter, ...]
    author: str | None = None
    cover: bytes | None = None  # an image file
    num_letters: int | None = None  # letters and digits to speak in the file; None: not counted
    left_out: Mapping[str, int] = field(default_factory=dict)  # words by category

    @property
    def num_chars(self) -> int:
        return sum(chapter.num_chars for chapter in self.chapters)

    @property
    def num_words(self) -> int:
        return sum(chapter.num_words for chapter in self.chapters)
