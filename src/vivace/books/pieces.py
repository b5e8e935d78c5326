"""A book as pieces: what is spoken in one go, kept in one file and never made twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

from vivace.books.book import Book, Chapter
from vivace.text.split import split_sentences

MAX_PIECE_CHARS = 800  # less than a minute of audio: what a kill loses
CUT_GAP_S, PARAGRAPH_GAP_S, HEADING_GAP_S, CHAPTER_GAP_S = 0.3, 0.6, 1.0, 2.0


@dataclass(frozen=True, slots=True)
class Passage:
    """A paragraph, or a part of a long one, and the silence after it."""

    text: str
    gap_s: float


@dataclass(frozen=True, slots=True)
class Piece:
    chapter: int  # its index
    passages: tuple[Passage, ...]

    @property
    def num_chars(self) -> int:
        return sum(len(each.text) for each in self.passages)

    def key(self, identity: object) -> str:
        """A name for its audio: the same words, spoken in the same way, have the same."""
        told = [identity, [[each.text, each.gap_s] for each in self.passages]]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32]


def cut_book(book: Book) -> list[Piece]:
    return [
        Piece(number, passages)
        for number, chapter in enumerate(book.chapters)
        for passages in _group(_passages(chapter))
    ]


def _group(passages: list[Passage]) -> Iterator[tuple[Passage, ...]]:
    waiting: list[Passage] = []
    for passage in passages:
        num_chars = sum(len(each.text) for each in waiting)
        if waiting and num_chars + len(passage.text) > MAX_PIECE_CHARS:
            yield tuple(waiting)
            waiting = []
        waiting.append(passage)
    yield tuple(waiting)


def _passages(chapter: Chapter) -> list[Passage]:
    found: list[Passage] = []
    for paragraph in chapter.paragraphs:
        gap_s = HEADING_GAP_S if paragraph.is_heading else PARAGRAPH_GAP_S
        parts = _cut(paragraph.text)
        found += [Passage(part, CUT_GAP_S) for part in parts[:-1]]
        found.append(Passage(parts[-1], gap_s))
    return [*found[:-1], Passage(found[-1].text, CHAPTER_GAP_S)]


def _cut(text: str) -> list[str]:
    """A paragraph that is longer than a piece, at the ends of sentences."""
    if len(text) <= MAX_PIECE_CHARS:
        return [text]
    parts: list[str] = []
    for sentence in split_sentences(text):
        if parts and len(parts[-1]) + 1 + len(sentence) <= MAX_PIECE_CHARS:
            parts[-1] += f" {sentence}"
        else:
            parts.append(sentence)
    return parts
