"""One interface for two sources of speech: the engine of this process, or a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vivace.audio.encode import to_pcm
from vivace.audio.resample import StreamResampler
from vivace.speech import Word, language_name
from vivace.tts import TTS

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


@dataclass(frozen=True, slots=True)
class LocalSource:
    """The engine of this process."""

    tts: TTS

    @property
    def sample_rate(self) -> int:
        return self.tts.sample_rate

    @property
    def model(self) -> str:
        return self.tts.checkpoint.folder.name

    async def speak(
        self, text: AsyncIterator[str] | str, sample_rate: int, **options: Any
    ) -> AsyncIterator[Sound]:
        if language := options.get("language"):
            options["language"] = language_name(language)
        resampler = StreamResampler(self.sample_rate, sample_rate)
        async with self.tts.astream(text, **options) as stream:
            async for chunk in stream:
                samples = resampler.process(chunk.samples)
                if len(samples) or chunk.words:
                    yield Sound(pcm_bytes(samples), sample_rate, chunk.words or ())
        if len(rest := resampler.finish()):
            yield Sound(pcm_bytes(rest), sample_rate)

    async def prepare(self) -> None: ...

    async def aclose(self) -> None: ...


def open_source(source: TTS | str | Source, api_key: str | None = None) -> Source:
    """Accepts a TTS of this process or the address of a server: `http://127.0.0.1:8000`."""
    if isinstance(source, TTS):
        return LocalSource(source)
    if not isinstance(source, str):
        return source
    from vivace.integrations.server import ServerSource  # needs websockets

    return ServerSource(source, api_key=api_key)


def pcm_bytes(samples: NDArray[np.float32]) -> bytes:
    """16-bit little-endian samples."""
    return to_pcm(samples).astype("<i2").tobytes()


def given(**options: Any) -> dict[str, Any]:
    """Drop options that are None."""
    return {name: value for name, value in options.items() if value is not None}
