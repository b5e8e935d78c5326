"""Splits a book into segments. A segment is spoken in one batch and stored in one file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

from vivace.books.book import Book, Chapter
from vivace.books.count import count_letters
from vivace.errors import RequestError
from vivace.text.split import split_sentences

MAX_SEGMENT_CHARS = 800  # less than a minute of audio, the most that an interruption can lose
CUT_GAP_S, LINE_GAP_S, PARAGRAPH_GAP_S, HEADING_GAP_S, CHAPTER_GAP_S = 0.3, 0.4, 0.6, 1.0, 2.0


@dataclass(frozen=True, slots=True)
class Passage:
    """A paragraph, or a part of a long paragraph, and the silence after it."""

    text: str
    gap_s: float
    paragraph: int = 0  # index in the chapter


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive passages of one chapter."""

    chapter: int  # index
    passages: tuple[Passage, ...]

    @property
    def num_chars(self) -> int:
        return sum(len(each.text) for each in self.passages)

    def key(self, identity: object) -> str:
        """A digest of the text and the `identity` of the voice. Equal keys have equal audio."""
        content = [identity, [[each.text, each.gap_s] for each in self.passages]]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def split_book(book: Book) -> list[Segment]:
    """Split all chapters. Raises RequestError if letters would be lost."""
    segments = [
        Segment(number, passages)
        for number, chapter in enumerate(book.chapters)
        for passages in _group(_passages(chapter))
    ]
    num_letters = [0] * len(book.chapters)
    for segment in segments:
        num_letters[segment.chapter] += sum(count_letters(each.text) for each in segment.passages)
    for chapter, num_found in zip(book.chapters, num_letters, strict=True):
        if chapter.num_letters != num_found:
            raise RequestError(
                f"chapter {chapter.title!r}: {num_found:,} of {chapter.num_letters:,} letters and "
                "digits would be spoken; this is a bug in vivace, please report it"
            )
    return segments


def _group(passages: list[Passage]) -> Iterator[tuple[Passage, ...]]:
    waiting: list[Passage] = []
    num_chars = 0
    for passage in passages:
        if waiting and num_chars + len(passage.text) > MAX_SEGMENT_CHARS:
            yield tuple(waiting)
            waiting, num_chars = [], 0
        waiting.append(passage)
        num_chars += len(passage.text)
    yield tuple(waiting)


def _passages(chapter: Chapter) -> list[Passage]:
    found: list[Passage] = []
    for number, paragraph in enumerate(chapter.paragraphs):
        parts = _split_long(paragraph.text)
        found += [Passage(part, CUT_GAP_S, number) for part in parts[:-1]]
        gap_s = LINE_GAP_S if paragraph.is_line else PARAGRAPH_GAP_S
        gap_s = HEADING_GAP_S if paragraph.is_heading else gap_s
        found.append(Passage(parts[-1], gap_s, number))
    return [*found[:-1], replace(found[-1], gap_s=CHAPTER_GAP_S)]


def _split_long(text: str) -> list[str]:
    """Split a paragraph that is longer than a segment at sentence ends."""
    if len(text) <= MAX_SEGMENT_CHARS:
        return [text]
    parts: list[str] = []
    for sentence in split_sentences(text):
        if parts and len(parts[-1]) + 1 + len(sentence) <= MAX_SEGMENT_CHARS:
            parts[-1] += f" {sentence}"
        else:
            parts.append(sentence)
    return parts
