"""Checks a whole book against the loaded model before the first passage is spoken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from vivace.books.book import Book
from vivace.books.reader import is_spoken
from vivace.books.segments import Passage, Segment
from vivace.errors import RequestError, TextError, UnsupportedTextError
from vivace.options import SpeechOptions, StreamOptions
from vivace.speech import shown
from vivace.tts import TTS

MAX_SHOWN = 5  # passages in one message


@dataclass(frozen=True, slots=True)
class UnspeakablePassage:
    """A passage that the model cannot speak."""

    chapter: int  # index
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
    """Text that is skipped with `on_unsupported="skip"`."""

    silent: frozenset[str] = frozenset()  # passages without any supported text
    skipped: tuple[str, ...] = ()  # runs of unsupported characters


def check_segments(
    tts: TTS, book: Book, segments: Iterable[Segment], options: SpeechOptions
) -> BookCheck:
    """Raise RequestError with chapter and paragraph if `speak` would reject any passage.

    With `on_unsupported="skip"`, passages without supported text become silent.
    """
    failures: list[UnspeakablePassage] = []
    silent: list[str] = []
    skipped: list[str] = []
    can_skip = options.on_unsupported == "skip"
    for segment, passage in _spoken_passages(segments, options):
        try:
            with tts.synthesizer.stream(passage.text, options.to(StreamOptions)) as stream:
                skipped += stream.usage.skipped
        except TextError as error:
            if can_skip and isinstance(error, UnsupportedTextError):
                silent.append(passage.text)
                skipped.append(passage.text)
            else:
                failures.append(UnspeakablePassage(segment.chapter, passage, error))
    if failures:
        raise _error(failures, book)
    return BookCheck(frozenset(silent), tuple(skipped))


def _spoken_passages(
    segments: Iterable[Segment], options: SpeechOptions
) -> Iterator[tuple[Segment, Passage]]:
    for segment in segments:
        yield from ((segment, each) for each in segment.passages if is_spoken(each.text, options))


def _error(failures: list[UnspeakablePassage], book: Book) -> RequestError:
    described = [each.describe(book) for each in failures[:MAX_SHOWN]]
    more = len(failures) - len(described)
    rest = f"; and {more:,} more" if more else ""
    count = f"{len(failures):,} passage{'s' * (len(failures) > 1)}"
    return RequestError(f"{count} of the book cannot be spoken: {'; '.join(described)}{rest}")
