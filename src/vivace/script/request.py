"""A request: what is to be said, and how."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from dataclasses import dataclass

from vivace.errors import RequestError
from vivace.prompt import TextLayout
from vivace.speech import LiveMode, OnUnsupported
from vivace.text.lexicon import Lexicon
from vivace.voices.voice import Voice

Pieces = Iterator[str | None] | AsyncIterator[str | None]
"""A live text as it is written; None is skipped."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """Nothing is filled in: no voice means no speaker, no instruct none."""

    text: str | Pieces
    voice: str | Voice | None
    language: str
    instruct: str | None
    layout: TextLayout | None  # None: the official choice
    live: LiveMode | None = None  # how a text in pieces is taken; None: the checkpoint's default
    split: bool = True  # a long text into utterances
    breaks: bool = False  # read line breaks as pauses; False: a text as it is, as the official code
    verbatim: bool = False  # every character reaches the voice, with the official template's ids
    clean: bool = False  # remove markdown, emoji and links first
    keep_emoji: bool = False
    normalize: bool | None = None  # None: the checkpoint's default
    lexicons: tuple[Lexicon, ...] = ()  # the first has precedence
    on_unsupported: OnUnsupported = "error"  # for letters that the checkpoint does not read
    trim: bool = False  # remove silence and the end of a reference at the start


def as_pieces(text: object) -> Pieces:
    """An iterator of text pieces, or a RequestError."""
    if isinstance(text, (list, tuple)):
        raise RequestError(
            "a list of texts is a batch, which only speak makes; stream one text at a time, "
            "or give iter(pieces) for one text in pieces"
        )
    if isinstance(text, AsyncIterable):
        return text.__aiter__()
    if isinstance(text, Iterable) and not isinstance(text, (bytes, bytearray)):
        return iter(text)
    kind = type(text).__name__
    raise RequestError(f"text must be a string or an iterator of strings, not {kind}")
