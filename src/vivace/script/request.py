"""`Request`: a text to speak, with its voice looked up and its options."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass

from vivace.errors import RequestError
from vivace.mark.marking import NO_MARKING, Marking
from vivace.options import SpeechOptions
from vivace.text.lexicon import Lexicon
from vivace.voices.voice import Voice

Pieces = Iterator[str | None] | AsyncIterator[str | None]
"""A live text as it is written; None is skipped."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """The input of a `Stream`. `voice` and `lexicons` replace the sources named in `options`."""

    text: str | Pieces
    voice: str | Voice | None  # None: no speaker
    options: SpeechOptions
    lexicons: tuple[Lexicon, ...] = ()  # the first has precedence
    breaks: bool = False  # read line breaks as pauses; False: as the official code
    marking: Marking = NO_MARKING  # of the speech, as AI-generated
    verbatim: bool = False  # every character reaches the voice, with the official template's ids


def as_pieces(text: object) -> Pieces:
    """An iterator of text pieces. Raises RequestError for a list and for other types."""
    if isinstance(text, (list, tuple)):
        raise RequestError(
            "text must not be a list here: only speak accepts a list, as a batch; stream one text "
            "at a time, or give iter(pieces) for one text in pieces"
        )
    if isinstance(text, AsyncIterable):
        return text.__aiter__()
    if isinstance(text, Iterable) and not isinstance(text, (bytes, bytearray, Mapping, Set)):
        return iter(text)
    kind = type(text).__name__
    raise RequestError(f"text must be a string or an iterator of strings, not {kind}")
