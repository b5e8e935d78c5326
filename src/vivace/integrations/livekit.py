"""`TTS` for LiveKit agents, over a TTS of this process or over a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from uuid import uuid4

from vivace.errors import QueueFullError, RequestError, ServerError, TTSError
from vivace.integrations.framework import framework
from vivace.integrations.open import open_source
from vivace.integrations.source import MAX_TEXT_CHARS, Source, given
from vivace.live_text import LiveText
from vivace.tts import TTS as Engine

with framework("livekit-agents", tested="1.8.9", extra="livekit"):
    from livekit.agents import APIConnectionError, APIError, tts
    from livekit.agents.types import DEFAULT_API_CONNECT_OPTIONS, APIConnectOptions
    from livekit.agents.voice.io import TimedString

FRAME_MS = 80  # length of an audio frame, after three shorter ones


class TTS(tts.TTS):
    """`source` is a `vivace.TTS`, or the address of a `vivace serve` such as
    `http://127.0.0.1:8000`; `options` are those of its `astream`. With `timings=True`
    transcripts are aligned with the audio.
    """

    def __init__(
        self,
        source: Engine | str | Source,
        *,
        api_key: str | None = None,
        max_text_chars: int = MAX_TEXT_CHARS,
        **options: Any,
    ) -> None:
        self._source, self._is_ours = open_source(source, api_key), isinstance(source, str)
        self._options = given(**options)
        has_timings = bool(options.get("timings"))
        self.max_text_chars = max_text_chars
        self._preparing: asyncio.Task[None] | None = None
        super().__init__(
            capabilities=tts.TTSCapabilities(streaming=True, aligned_transcript=has_timings),
            sample_rate=self._source.sample_rate,
            num_channels=1,
        )

    @property
    def model(self) -> str:
        return str(self._options.get("model", self._source.model))

    @property
    def provider(self) -> str:
        return "vivace"

    def update_options(self, **options: Any) -> None:
        """Change options of later replies. None resets an option to its default."""
        self._options = given(**{**self._options, **options})

    def synthesize(
        self, text: str, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> ChunkedStream:
        return ChunkedStream(tts=self, input_text=text, conn_options=conn_options)

    def stream(
        self, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> SynthesizeStream:
        return SynthesizeStream(tts=self, conn_options=conn_options)

    def prewarm(self) -> None:
        """Open the connection before the first reply. An unreachable server is not an error yet."""
        if self._preparing is None:
            self._preparing = asyncio.ensure_future(self._prepare())

    async def aclose(self) -> None:
        if self._preparing is not None:
            self._preparing.cancel()
            await asyncio.gather(self._preparing, return_exceptions=True)
        if self._is_ours:
            await self._source.aclose()

    async def speak(self, text: AsyncIterator[str] | str, emitter: tts.AudioEmitter) -> None:
        """Push the audio of a text. Every failure raises APIError, as the agent expects."""
        last_char = -1
        try:
            async for sound in self._source.speak(text, self.sample_rate, **self._options):
                for word in sound.words:
                    gap = " " if 0 <= last_char < word.start_char else ""  # Chinese has no spaces
                    timed = TimedString(gap + word.text, word.start_s, word.end_s)
                    emitter.push_timed_transcript(timed)
                    last_char = word.end_char
                emitter.push(sound.pcm)
        except (QueueFullError, ServerError) as error:
            raise APIConnectionError(str(error), retryable=True) from error
        except TTSError as error:
            raise APIError(str(error), retryable=not isinstance(error, RequestError)) from error

    def begin(self, emitter: tts.AudioEmitter, *, stream: bool) -> str:
        name = uuid4().hex
        emitter.initialize(
            request_id=name,
            sample_rate=self.sample_rate,
            num_channels=1,
            mime_type="audio/pcm",
            frame_size_ms=FRAME_MS,
            stream=stream,
        )
        return name

    async def _prepare(self) -> None:
        with suppress(TTSError):
            await self._source.prepare()


class ChunkedStream(tts.ChunkedStream):
    """Speaks a complete text."""

    _tts: TTS

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        self._tts.begin(output_emitter, stream=False)
        await self._tts.speak(self._input_text, output_emitter)
        output_emitter.flush()


class SynthesizeStream(tts.SynthesizeStream):
    """Speaks a text while it is written; `flush` and `end_input` complete the text."""

    _tts: TTS

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        name = self._tts.begin(output_emitter, stream=True)
        text = LiveText(self._tts.max_text_chars)
        writer = asyncio.ensure_future(self._write(text))
        try:
            if await text.has_words():
                output_emitter.start_segment(segment_id=name)
                await self._tts.speak(text, output_emitter)
                output_emitter.end_segment()
        except TTSError as error:
            raise APIError(str(error), retryable=False) from error
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _write(self, text: LiveText) -> None:
        async for piece in self._input_ch:
            if isinstance(piece, self._FlushSentinel):
                break
            self._mark_started()
            text.add(piece)
        text.end()
