"""The interface of a source of speech, which frameworks read: `LocalSource` or `ServerSource`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vivace.audio.encode import to_pcm
from vivace.speech import Word

MAX_TEXT_CHARS = 65_536  # of one reply; the same limit as the server's


@dataclass(frozen=True, slots=True)
class Sound:
    """The next piece of a reply."""

    pcm: bytes  # 16-bit little-endian, mono
    sample_rate: int
    words: tuple[Word, ...] = ()  # words that end in this piece, if timings were requested


class Source(Protocol):
    """Speaks a text while it is written. Closing the iterator or its task stops the speech."""

    @property
    def sample_rate(self) -> int: ...

    @property
    def model(self) -> str: ...

    def speak(
        self, text: AsyncIterator[str] | str, sample_rate: int, **options: Any
    ) -> AsyncIterator[Sound]: ...

    async def prepare(self) -> None: ...

    async def aclose(self) -> None:
        """Close the source. Only its creator calls this, because services may share a source."""


def pcm_bytes(samples: NDArray[np.float32]) -> bytes:
    """16-bit little-endian samples."""
    return to_pcm(samples).astype("<i2").tobytes()


def given(**options: Any) -> dict[str, Any]:
    """Drop options that are None."""
    return {name: value for name, value in options.items() if value is not None}
