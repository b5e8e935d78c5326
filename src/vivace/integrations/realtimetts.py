"""`VivaceEngine`, an engine of RealtimeTTS that accepts text while it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Lock
from typing import Any

from vivace.errors import (
    RequestError,
    StreamClosedError,
    TextTooLongError,
    UnknownVoiceError,
)
from vivace.integrations.framework import framework
from vivace.integrations.source import MAX_TEXT_CHARS, given, pcm_bytes
from vivace.speech import LiveMode
from vivace.tts import TTS

with framework("realtimetts", tested="0.8.10", extra="realtimetts"):
    from RealtimeTTS.engines.base_engine import BaseEngine, TimingInfo

INT16 = 8  # pyaudio.paInt16; pyaudio is needed only for playback


class VivaceEngine(BaseEngine):
    """For `TextToAudioStream`; `options` are those of `TTS.stream`.

    `live` speaks text as it arrives: by `word`, by `sentence`, or (True) as the checkpoint says.
    False lets RealtimeTTS split sentences, which its fallback engines, voice tags and sentence
    callbacks need.
    """

    def __init__(
        self,
        tts: TTS,
        *,
        live: bool | LiveMode = True,
        max_text_chars: int = MAX_TEXT_CHARS,
        **options: Any,
    ) -> None:
        mode = live if isinstance(live, str) else None
        self._tts, self._live, self._options = tts, bool(live), given(live=mode, **options)
        self._max_text_chars = max_text_chars
        self._lock = Lock()
        self._close: Callable[[], object] = bool  # does nothing: no speech yet

    def post_init(self) -> None:
        """RealtimeTTS calls this after it has set its defaults."""
        self.engine_name = "vivace"
        self.can_consume_generators = self._live
        self.provides_word_timings = bool(self._options.get("timings"))

    def get_stream_info(self) -> tuple[int, int, int]:
        return INT16, 1, self._tts.sample_rate

    def synthesize(self, text: Any, sentence_count: int = 0) -> bool:
        """Speak a text, or characters as they arrive, into the queue. Errors are raised."""
        super().synthesize(text, sentence_count)
        source = text if isinstance(text, str) else self._characters(text)
        stream = self._tts.stream(source, **self._options)
        with self._lock:
            self._close = stream.close
            if self.stop_synthesis_event.is_set():
                stream.close()
        began_s = self.audio_duration
        with stream, suppress(StreamClosedError):  # `stop` closes the stream
            for chunk in stream:
                if self.stop_synthesis_event.is_set():
                    break
                if len(chunk.samples):
                    self.queue.put(pcm_bytes(chunk.samples))
                    self.audio_duration += len(chunk.samples) / chunk.sample_rate
                for word in chunk.words or ():
                    times = began_s + word.start_s, began_s + word.end_s
                    self.timings.put(TimingInfo(*times, word.text))
        return True

    def stop(self) -> None:
        """Stop generation and free the slot. May be called from any thread."""
        super().stop()
        with self._lock:
            self._close()

    def get_voices(self) -> list[str]:
        return list(self._tts.speakers)

    def set_voice(self, voice: Any) -> None:
        """Set a preset, a voice of the library, a `Voice` or the path of a recording."""
        found = self._tts.voice(voice)
        if isinstance(found, str) and found.lower() not in map(str.lower, self._tts.speakers):
            raise UnknownVoiceError(found, self._tts.speakers)
        self._options["voice"] = found

    def set_voice_parameters(self, **voice_parameters: Any) -> None:
        """Set options of `TTS.stream`: language, instruct, speed, seed, temperature, …"""
        if not voice_parameters:
            raise RequestError("no option was given; try language, instruct, speed or seed")
        self._options = given(**{**self._options, **voice_parameters})

    def _characters(self, text: Iterator[str]) -> Iterator[str]:
        num_chars = 0
        for piece in text:
            num_chars += len(piece)
            if num_chars > self._max_text_chars:
                raise TextTooLongError(num_chars, self._max_text_chars, "characters")
            yield piece
