"""Opens sources of speech: the engine of this process, or a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from vivace.audio.resample import StreamResampler
from vivace.integrations.source import Sound, Source, pcm_bytes
from vivace.speech import language_name
from vivace.tts import TTS


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
    from vivace.integrations.server import ServerSource  # imports websockets

    return ServerSource(source, api_key=api_key)
