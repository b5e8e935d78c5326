"""Checks a whole book against the loaded model before the first passage is spoken."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vivace.books.book import Book
from vivace.books.reader import is_spoken
from vivace.books.segments import Segment
from vivace.errors import RequestError, TextError, UnsupportedTextError
from vivace.options import SpeechOptions, StreamOptions
from vivace.speech import shown

if TYPE_CHECKING:
    from vivace.tts import TTS

MAX_SHOWN = 5  # passages in one message


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
    failures: list[str] = []
    silent: list[str] = []
    skipped: list[str] = []
    can_skip = options.on_unsupported == "skip"
    passages = [(segment.chapter, each) for segment in segments for each in segment.passages]
    for chapter, passage in passages:
        if not is_spoken(passage.text, options):
            continue
        try:
            with tts.synthesizer.stream(passage.text, options.to(StreamOptions)) as stream:
                skipped += stream.usage.skipped
        except TextError as error:
            if can_skip and isinstance(error, UnsupportedTextError):
                silent.append(passage.text)
                skipped.append(passage.text)
            else:
                place = f"chapter {chapter + 1} ({book.chapters[chapter].title}), paragraph"
                words = f"{place} {passage.paragraph + 1}, {shown(passage.text)}"
                failures.append(f"{words}: {error}")
    if failures:
        raise _error(failures)
    return BookCheck(frozenset(silent), tuple(skipped))


def _error(failures: list[str]) -> RequestError:
    num_more = len(failures) - MAX_SHOWN
    rest = f"; and {num_more:,} more" if num_more > 0 else ""
    count = f"{len(failures):,} passage{'s' * (len(failures) > 1)}"
    described = "; ".join(failures[:MAX_SHOWN])
    return RequestError(f"{count} of the book cannot be spoken: {described}{rest}")
