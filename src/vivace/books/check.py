"""Checks a whole book against the loaded model before anything is spoken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from vivace.books.book import Book
from vivace.books.pieces import Passage, Piece
from vivace.books.reader import is_spoken
from vivace.errors import RequestError, TextError, UnsupportedTextError
from vivace.options import SpeechOptions, StreamOptions
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


@dataclass(frozen=True, slots=True)
class BookCheck:
    """What is left out of a book with `on_unsupported="skip"`."""

    silent: frozenset[str] = frozenset()  # passages of which nothing can be spoken
    skipped: tuple[str, ...] = ()  # all letters that the model does not read, in runs


def check_pieces(
    tts: TTS, book: Book, pieces: Iterable[Piece], options: SpeechOptions
) -> BookCheck:
    """Raise RequestError if `speak` would refuse any passage; it names chapter and paragraph.

    With `on_unsupported="skip"`, passages of letters that the model does not read are silent.
    """
    refusals: list[Refusal] = []
    silent: list[str] = []
    skipped: list[str] = []
    can_skip = options.on_unsupported == "skip"
    for piece, passage in _spoken_passages(pieces, options):
        try:
            with tts.stream_with(passage.text, options.to(StreamOptions)) as stream:
                skipped += stream.usage.skipped
        except TextError as error:
            if can_skip and isinstance(error, UnsupportedTextError):
                silent.append(passage.text)
                skipped.append(passage.text)
            else:
                refusals.append(Refusal(piece.chapter, passage, error))
    _raise(refusals, book)
    return BookCheck(frozenset(silent), tuple(skipped))


def _spoken_passages(
    pieces: Iterable[Piece], options: SpeechOptions
) -> Iterator[tuple[Piece, Passage]]:
    for piece in pieces:
        yield from ((piece, each) for each in piece.passages if is_spoken(each.text, options))


def _raise(refusals: list[Refusal], book: Book) -> None:
    if not refusals:
        return
    shown_ones = [each.describe(book) for each in refusals[:MAX_SHOWN]]
    more = len(refusals) - len(shown_ones)
    rest = f"; and {more:,} more" if more else ""
    count = f"{len(refusals):,} passage{'s' * (len(refusals) > 1)}"
    raise RequestError(f"{count} of the book cannot be spoken: {'; '.join(shown_ones)}{rest}")
