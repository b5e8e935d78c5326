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

from vivace.audio.encode import open_encoder, tags_of
from vivace.audio.file_mark import FileMark
from vivace.audio.formats import FORMATS, SPEECH_FORMATS
from vivace.audio.resample import StreamResampler
from vivace.audio.writer import sign_bytes
from vivace.errors import AudioError, EngineError
from vivace.mark.marking import NO_MARKING, Marking

UNTAGGED = ("aac", "pcm")  # formats without a place for tags
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
        marking: Marking = NO_MARKING,
    ) -> None:
        to_rate = to_rate or from_rate
        self.format, self.sample_rate, self._bit_rate = format, to_rate, bit_rate
        self._watermark = marking.open_stream(from_rate)
        self._resampler = StreamResampler(from_rate, to_rate)
        self._encoder = open_encoder(format, to_rate, bit_rate)
        is_cheap = format in CHEAP and from_rate == to_rate and self._watermark is None
        self._threads = None if is_cheap else threads
        self.mark: FileMark | None = None

    def set_mark(self, mark: FileMark | None) -> None:
        """Set what the file says about its origin, before the first samples."""
        self.mark = mark
        if mark is not None and self.format not in UNTAGGED:
            self._encoder = open_encoder(
                self.format, self.sample_rate, self._bit_rate, tags_of(mark)
            )

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
        if self._watermark is not None:
            samples = self._watermark.feed(samples)
        return self._encoder.encode(self._resampler.process(samples))

    def _finish(self) -> bytes:
        rest = np.empty(0, np.float32) if self._watermark is None else self._watermark.finish()
        last = [self._resampler.process(rest), self._resampler.finish()]
        return self._encoder.encode(np.concatenate(last)) + self._encoder.finish()

    def _encode_whole(self, chunks: list[NDArray[np.float32]]) -> bytes:
        file = io.BytesIO(b"".join([*map(self._encode, chunks), self._finish()]))
        self._encoder.patch(file)
        if self.mark is None or self.mark.signer is None:
            return file.getvalue()
        return sign_bytes(self.mark.signer, file, self.format)
