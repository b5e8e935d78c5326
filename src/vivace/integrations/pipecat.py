"""`VivaceTTSService` for pipecat pipelines, over a TTS of this process or over a server.

Speaks tokens of the language model as they arrive. A reply is one audio context and one text.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from vivace.errors import TTSError
from vivace.integrations.framework import framework
from vivace.integrations.open import open_source
from vivace.integrations.source import MAX_TEXT_CHARS, Sound, Source, given
from vivace.live_text import LiveText
from vivace.speech import language_name
from vivace.tts import TTS

with framework("pipecat-ai", tested="1.14.0", extra="pipecat"):
    from pipecat.frames.frames import (
        CancelFrame,
        EndFrame,
        ErrorFrame,
        Frame,
        StartFrame,
        TTSAudioRawFrame,
        TTSStoppedFrame,
    )
    from pipecat.services.settings import NOT_GIVEN, TTSSettings
    from pipecat.services.tts_service import TextAggregationMode, TTSService
    from pipecat.transcriptions.language import Language
    from pipecat.utils.tracing.service_decorators import traced_tts

# The end of its speech ends a context; a pause of the language model must not.
QUIET_S = 3_600.0
UNSPACED = ("chinese", "japanese")  # every character is a word


@dataclass
class VivaceTTSSettings(TTSSettings):
    """Settings that may change between replies: `model`, `voice`, `language`, and these."""

    instruct: Any = field(default_factory=lambda: NOT_GIVEN)  # str or None
    speed: Any = field(default_factory=lambda: NOT_GIVEN)  # float or None


@dataclass(frozen=True, slots=True)
class Reply:
    text: LiveText
    task: asyncio.Task[None]


class VivaceTTSService(TTSService):
    """`source` is a `TTS`, or the address of a `vivace serve` such as `http://127.0.0.1:8000`.

    `options` are those of `TTS.astream` that settings do not name, such as `seed`. With
    `word_timestamps` the context receives each word when it is played.
    """

    Settings = VivaceTTSSettings
    _settings: VivaceTTSSettings

    def __init__(
        self,
        source: TTS | str | Source,
        *,
        api_key: str | None = None,
        settings: VivaceTTSSettings | None = None,
        text_aggregation_mode: TextAggregationMode = TextAggregationMode.TOKEN,
        word_timestamps: bool = False,
        max_text_chars: int = MAX_TEXT_CHARS,
        options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._source, self._is_ours = open_source(source, api_key), isinstance(source, str)
        stored = VivaceTTSSettings(
            model=self._source.model, voice=None, language=None, instruct=None, speed=None
        )
        if settings is not None:
            stored.apply_update(settings)
        super().__init__(
            text_aggregation_mode=text_aggregation_mode,
            push_text_frames=not word_timestamps,
            push_start_frame=True,
            append_trailing_space=True,
            stop_frame_timeout_s=QUIET_S,
            settings=stored,
            **kwargs,
        )
        self._options = {**(options or {}), **({"timings": True} if word_timestamps else {})}
        self._max_text_chars = max_text_chars
        self._replies: dict[str, Reply] = {}  # by context id

    def can_generate_metrics(self) -> bool:
        return True

    @property
    def supports_processing_metrics(self) -> bool:
        return False  # `run_tts` measures the time to first audio

    def language_to_service_language(self, language: Language) -> str | None:
        return language_name(str(language))

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        try:
            await self._source.prepare()
        except TTSError as error:
            await self.push_error(error_msg=str(error), exception=error)

    async def stop(self, frame: EndFrame) -> None:
        for reply in self._replies.values():
            reply.text.end()  # the pipeline waits for the speech so far
        await super().stop(frame)

    async def cancel(self, frame: CancelFrame) -> None:
        await self._drop_all()
        await super().cancel(frame)

    async def cleanup(self) -> None:
        await self._drop_all()
        await super().cleanup()
        if self._is_ours:
            await self._source.aclose()

    @traced_tts
    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        """Add text to a reply. A task of its own sends the audio."""
        reply = self._replies.get(context_id)
        if reply is None or reply.text.is_ended:
            live = LiveText(self._max_text_chars)
            reply = Reply(live, self.create_task(self._speak(context_id, live)))
            self._replies[context_id] = reply
        reply.text.add(text)
        await self.start_tts_usage_metrics(text)
        yield None

    async def flush_audio(self, context_id: str | None = None) -> None:
        """Mark the text of a reply as complete."""
        reply = self._replies.get(context_id or self.get_active_audio_context_id() or "")
        if reply is not None:
            reply.text.end()

    async def on_audio_context_interrupted(self, context_id: str) -> None:
        """Stop the speech and free its slot when the user interrupts."""
        await self.stop_all_metrics()
        await self._drop(context_id)
        await super().on_audio_context_interrupted(context_id)

    # -- a reply -----------------------------------------------------------------------------

    async def _speak(self, context_id: str, text: LiveText) -> None:
        try:
            if await text.has_words():
                async for sound in self._source.speak(
                    text, self.sample_rate, **self._speech_options()
                ):
                    await self._push(context_id, sound)
        except Exception as error:
            failure = ErrorFrame(error=f"{self}: {error}", exception=error)
            await self.append_to_audio_context(context_id, failure)
        self._replies.pop(context_id, None)
        await self.append_to_audio_context(context_id, TTSStoppedFrame(context_id=context_id))
        if self.audio_context_available(context_id):
            await self.remove_audio_context(context_id)

    async def _push(self, context_id: str, sound: Sound) -> None:
        if sound.pcm:
            frame = TTSAudioRawFrame(sound.pcm, sound.sample_rate, 1, context_id=context_id)
            await self.append_to_audio_context(context_id, frame)
        if sound.words:
            times = [(word.text, word.start_s) for word in sound.words]
            is_unspaced = self._settings.language in UNSPACED
            await self.add_word_timestamps(times, context_id, is_unspaced or None)

    def _speech_options(self) -> dict[str, Any]:
        names = ("voice", "language", "instruct", "speed")
        return self._options | given(**{name: getattr(self._settings, name) for name in names})

    async def _drop(self, context_id: str) -> None:
        if (reply := self._replies.pop(context_id, None)) is not None:
            await self.cancel_task(reply.task)

    async def _drop_all(self) -> None:
        for context_id in list(self._replies):
            await self._drop(context_id)
