"""A piece of speech in the form that frameworks expect."""

from __future__ import annotations

from dataclasses import dataclass

from vivace.speech import Word


@dataclass(frozen=True, slots=True)
class Sound:
    """The next piece of a reply."""

    pcm: bytes  # 16-bit little-endian, mono
    sample_rate: int
    words: tuple[Word, ...] = ()  # words that end in this piece, if timings were requested
