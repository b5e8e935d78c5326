"""Chunks of speech to the bytes of a format and sample rate, as they are made.

Compressed formats are encoded on threads of their own: an mp3 costs two hundredths of its duration,
which dozens of streams could not spend on the event loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from vivace.audio.encode import open_encoder
from vivace.audio.formats import FORMATS, SPEECH_FORMATS
from vivace.audio.resample import StreamResampler
from vivace.errors import AudioError
from vivace.serve.gauges import CountedThreads
from vivace.serve.metrics import Metrics
from vivace.serve.request import SpeechRequest

CHEAP = ("flac", "wav", "pcm")  # encoded where they are: a thread would cost more


class Encoders:
    """Opens encoders that share a few threads."""

    def __init__(self, metrics: Metrics | None = None) -> None:
        self._threads = CountedThreads(os.cpu_count() or 1, "encode", metrics)

    def warm_up(self) -> list[str]:
        """Import what the formats need, which takes a while; names those that cannot be written."""
        missing = []
        for name in SPEECH_FORMATS:
            try:
                open_encoder(name, 24_000).finish()
            except AudioError:
                missing.append(name)
        return missing

    def open(
        self,
        format: str,
        from_rate: int,
        to_rate: int | None = None,
        bit_rate: int | None = None,
    ) -> SpeechEncoder:
        """An AudioError where the format is not known, not installed, or not of that rate."""
        return SpeechEncoder(format, from_rate, to_rate or from_rate, bit_rate, self._threads)

    def open_for(self, request: SpeechRequest, from_rate: int) -> SpeechEncoder:
        """The encoder that a request asks for."""
        return self.open(request.response_format, from_rate, request.sample_rate, request.bit_rate)


class SpeechEncoder:
    """Samples in, bytes out: `encode` chunk by chunk, then `finish`; or `encode_whole`."""

    def __init__(
        self,
        format: str,
        from_rate: int,
        to_rate: int,
        bit_rate: int | None,
        threads: ThreadPoolExecutor,
    ) -> None:
        self.format, self.sample_rate = format, to_rate
        self._resampler = StreamResampler(from_rate, to_rate)
        self._encoder = open_encoder(format, to_rate, bit_rate)
        self._threads = None if format in CHEAP and from_rate == to_rate else threads

    @property
    def content_type(self) -> str:
        kind = FORMATS[self.format].content_type
        return f"{kind};rate={self.sample_rate}" if self.format == "pcm" else kind

    async def encode(self, samples: NDArray[np.float32]) -> bytes:
        """The bytes that are ready."""
        return await self._run(lambda: self._encode(samples))

    async def finish(self) -> bytes:
        """The last bytes."""
        return await self._run(self._finish)

    async def encode_whole(self, chunks: list[NDArray[np.float32]]) -> bytes:
        """A whole file, with its true sizes in the header."""
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
        content = bytearray(b"".join([*map(self._encode, chunks), self._finish()]))
        for position, patch in self._encoder.patches:
            content[position : position + len(patch)] = patch
        return bytes(content)
