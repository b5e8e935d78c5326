"""Checks a whole book against the loaded model before anything is spoken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from vivace.books.book import Book
from vivace.books.pieces import Passage, Piece
from vivace.books.reader import is_spoken
from vivace.errors import RequestError, TextError
from vivace.speech import shown
from vivace.tts import TTS

MAX_SHOWN = 5  # passages in one message


@dataclass(frozen=True, slots=True)
class Refusal:
    """A passage that the model cannot speak."""

    chapter: int  # its index
    passage: Passage
    reason: TextError

    def describe(self, book: Book) -> str:
        title = book.chapters[self.chapter].title
        return (
            f"chapter {self.chapter + 1} ({title}), paragraph {self.passage.paragraph + 1}, "
            f"{shown(self.passage.text)}: {self.reason}"
        )


def check_pieces(tts: TTS, book: Book, pieces: Iterable[Piece], options: dict[str, Any]) -> None:
    """Raise RequestError if `speak` would refuse any passage; it names chapter and paragraph."""
    refusals = list(find_refusals(tts, pieces, options))
    if not refusals:
        return
    shown_ones = [each.describe(book) for each in refusals[:MAX_SHOWN]]
    more = len(refusals) - len(shown_ones)
    rest = f"; and {more:,} more" if more else ""
    count = f"{len(refusals):,} passage{'s' * (len(refusals) > 1)}"
    raise RequestError(f"{count} of the book cannot be spoken: {'; '.join(shown_ones)}{rest}")


def find_refusals(tts: TTS, pieces: Iterable[Piece], options: dict[str, Any]) -> Iterator[Refusal]:
    for piece in pieces:
        for passage in piece.passages:
            if not is_spoken(passage.text, options):
                continue
            try:
                tts.stream(passage.text, **options).close()
            except TextError as error:
                yield Refusal(piece.chapter, passage, error)
