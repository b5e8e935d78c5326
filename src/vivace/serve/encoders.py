"""Encodes chunks of speech to an audio format and sample rate.

Compressed formats are encoded in threads: mp3 takes 2 % of the audio's duration, which would block
the event loop of dozens of streams.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from vivace.audio.encode import open_encoder
from vivace.audio.formats import FORMATS, SPEECH_FORMATS
from vivace.audio.resample import StreamResampler
from vivace.errors import AudioError, EngineError

CHEAP = ("flac", "wav", "pcm")  # encoded on the event loop: a thread would cost more


def missing_formats() -> list[str]:
    """Import the encoders, which takes a while. Returns the formats that are not installed."""
    missing = []
    for name in SPEECH_FORMATS:
        try:
            open_encoder(name, 24_000).finish()
        except AudioError:
            missing.append(name)
    return missing


class SpeechEncoder:
    """Encodes one speech: `encode` for every chunk, then `finish`; or `encode_whole`.

    Raises AudioError if the format is unknown, not installed or lacks the sample rate.
    """

    def __init__(
        self,
        threads: ThreadPoolExecutor,
        format: str,
        from_rate: int,
        to_rate: int | None = None,
        bit_rate: int | None = None,
    ) -> None:
        to_rate = to_rate or from_rate
        self.format, self.sample_rate = format, to_rate
        self._resampler = StreamResampler(from_rate, to_rate)
        self._encoder = open_encoder(format, to_rate, bit_rate)
        self._threads = None if format in CHEAP and from_rate == to_rate else threads

    @property
    def content_type(self) -> str:
        kind = FORMATS[self.format].content_type
        return f"{kind};rate={self.sample_rate}" if self.format == "pcm" else kind

    async def encode(self, samples: NDArray[np.float32]) -> bytes:
        if not len(samples):
            return b""
        try:
            return await self._run(lambda: self._encode(samples))
        except AudioError as error:  # the audio is the engine's, not the client's
            raise EngineError(f"the audio could not be encoded: {error}") from error

    async def finish(self) -> bytes:
        return await self._run(self._finish)

    async def encode_whole(self, chunks: list[NDArray[np.float32]]) -> bytes:
        """A complete file, with its size in the header."""
        return await self._run(lambda: self._encode_whole(chunks), is_long=True)

    async def _run(self, work: Callable[[], bytes], *, is_long: bool = False) -> bytes:
        if self._threads is None and not is_long:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _encode(self, samples: NDArray[np.float32]) -> bytes:
        return self._encoder.encode(self._resampler.process(samples))

    def _finish(self) -> bytes:
        return self._encoder.encode(self._resampler.finish()) + self._encoder.finish()

    def _encode_whole(self, chunks: list[NDArray[np.float32]]) -> bytes:
        file = io.BytesIO(b"".join([*map(self._encode, chunks), self._finish()]))
        self._encoder.patch(file)
        return file.getvalue()
