"""A piece of speech as frameworks take it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sound:
    """The next piece of a reply."""

    pcm: bytes  # 16-bit little-endian, mono
    sample_rate: int
