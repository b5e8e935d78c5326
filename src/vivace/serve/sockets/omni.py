"""`/v1/audio/speech/stream`: vLLM-Omni's messages, with cancellation and words.

client                                        server
{"type": "session.config", "voice": …}
{"type": "input.text", "text": …} *           {"type": "audio.start", "sample_rate": …}
{"type": "input.done"}                        bytes *
                                              {"type": "audio.done"}, {"type": "session.done"}
with word_events, between them:               {"type": "audio.words", "words": […]} *
with word_timestamps, instead of bytes:       {"type": "audio.chunk", "audio_b64": …} *, words last
{"type": "input.cancel"}                      {"type": "audio.cancelled"}
{"type": "session.close"}                     the connection is closed
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.websockets import WebSocket

from vivace.live_text import LiveText
from vivace.serve.context import ServeContext
from vivace.serve.errors import Failure, RefusedError, describe
from vivace.serve.sockets.session import BROKEN, SocketSession
from vivace.serve.speak import PreparedSpeech, SpeechReport, SpeechSink, Words, prepare
from vivace.serve.sse import as_json
from vivace.speech import Word

MAX_UTTERANCES = 8  # of one connection: being written, waiting or being spoken
MAX_CONTEXT_CHARS = 128
DEFAULT_FORMAT = "wav"
TYPES = "session.config, input.text, input.done, input.cancel, session.close"


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """A checked `session.config`."""

    speech: PreparedSpeech
    is_whole: bool  # the audio is one message with the whole file
    has_events: bool  # words are messages between the audio

    @property
    def has_chunks(self) -> bool:
        """Audio is base64 in JSON, and the words follow the audio."""
        return self.speech.request.word_timestamps and not self.has_events


@dataclass(slots=True, eq=False)
class OmniUtterance(SpeechSink):
    """One utterance from its first text to `session.done`: the sink of its speech."""

    session: OmniSession
    index: int
    context_id: str | None
    config: SessionConfig
    text: LiveText
    task: asyncio.Task[None] | None = None
    num_bytes: int = 0
    num_chunks: int = 0
    has_sent_null: bool = False  # in `audio.words`, for a checkpoint without timings
    is_spoken: bool = False

    @property
    def is_whole(self) -> bool:
        return self.config.is_whole

    async def send(self, type: str, **fields: Any) -> None:
        name = {} if self.context_id is None else {"context_id": self.context_id}
        await self.session.send({"type": type, "utterance_index": self.index, **fields, **name})

    # -- the sink --------------------------------------------------------------------------------

    async def start(self, report: SpeechReport) -> None:
        await self.send(
            "audio.start",
            sentence_index=0,
            channels=1,
            format=report.encoder.format,
            sample_rate=report.encoder.sample_rate,
            **({"word_timestamps": True} if self.config.has_chunks else {}),
            sentence_text=self.text.received,
        )

    async def write(self, audio: bytes, words: Words) -> None:
        if self.config.has_events and (words or (words is None and not self.has_sent_null)):
            self.has_sent_null = words is None
            rows = None if words is None else list(map(as_json, words))
            await self.send("audio.words", words=rows)
        if audio:
            self.num_bytes += len(audio)
            await (self._send_chunk(audio) if self.config.has_chunks else self.session.send(audio))

    async def finish(self, audio: bytes, words: Words, report: SpeechReport) -> None:
        await self.write(audio, words)
        if self.config.has_chunks:
            await self._send_chunk(b"", report.words)
        facts = {"finish_reason": report.reason, **report.usage_fields}
        await self._send_done(error=False, **facts)
        self.is_spoken = True

    async def fail(self, error: Exception) -> None:
        """Before the first audio only the utterance ends, and the rest of its text is ignored.
        Later the connection ends, so that no client mistakes a part for the whole."""
        failure = describe(error)
        if not self.num_bytes:
            await self.send("error", **error_fields(failure))
            await self.text.wait_end()
            return
        partial = {"partial_audio": True, "action": "discard"}
        await self.send("error", **error_fields(failure), **partial)
        await self._send_done(error=True)
        await self.session.close(BROKEN, failure.message)

    async def _send_chunk(self, audio: bytes, words: Sequence[Word] | None = None) -> None:
        """Audio; at the end all words, or null if the checkpoint has no timings."""
        rows = None if words is None else [_in_milliseconds(word) for word in words]
        await self.send(
            "audio.chunk",
            sentence_index=0,
            chunk_id=self.num_chunks,
            audio_b64=base64.b64encode(audio).decode("ascii"),
            timestamps=rows,
        )
        self.num_chunks += 1

    async def _send_done(self, **fields: Any) -> None:
        await self.send("audio.done", sentence_index=0, total_bytes=self.num_bytes, **fields)


class OmniSession(SocketSession):
    def __init__(self, websocket: WebSocket, context: ServeContext) -> None:
        super().__init__(websocket, context)
        self._config: SessionConfig | None = None
        self._utterances: list[OmniUtterance] = []  # in the order of their first text
        self._num_utterances = 0
        self._turn = asyncio.Lock()  # utterances are spoken one after another

    def is_busy(self) -> bool:
        return bool(self._utterances) and self._utterances[0].text.is_ended

    async def refuse(self, failure: Failure) -> None:
        await self.send({"type": "error", **error_fields(failure)})

    async def handle(self, message: dict[str, Any]) -> None:
        kind = message.get("type")
        if kind == "session.config":
            await self._configure(message)
        elif kind == "input.text":
            self._add(message)
        elif kind == "input.done":
            context_id = read_context_id(message)
            (self._find_open(context_id) or self._begin(context_id)).text.end()
        elif kind == "input.cancel":
            await self._cancel(read_context_id(message))
        elif kind == "session.close":
            await self.close()
        else:
            raise RefusedError(
                f"type {str(kind)[:80]!r} is unknown; try one of: {TYPES}",
                code="unknown_type",
                param="type",
            )

    # -- messages ----------------------------------------------------------------------------

    async def _configure(self, message: dict[str, Any]) -> None:
        if any(not utterance.text.is_ended for utterance in self._utterances):
            raise RefusedError(
                "session.config inside an utterance; send input.done or input.cancel first",
                code="utterance_open",
            )
        is_whole = message.get("stream_audio") is False
        if message.get("word_timestamps") and (is_whole or message.get("response_format") != "pcm"):
            raise RefusedError(
                "word_timestamps need response_format 'pcm' and stream_audio",
                param="word_timestamps",
            )
        fields = {name: value for name, value in message.items() if value is not None}
        has_events = fields.get("word_events", False)
        if not isinstance(has_events, bool):
            raise RefusedError("word_events must be true or false", param="word_events")
        if has_events:
            fields["word_timestamps"] = True
        speech = await prepare(self.context, {"response_format": DEFAULT_FORMAT, **fields})
        self._config = SessionConfig(speech, is_whole, has_events)

    def _add(self, message: dict[str, Any]) -> None:
        text, context_id = message.get("text"), read_context_id(message)
        if not isinstance(text, str):
            raise RefusedError("text must be a string", param="text")
        utterance = self._find_open(context_id)
        if utterance is None and text:
            utterance = self._begin(context_id)
        if utterance is not None:
            utterance.text.add(text)

    async def _cancel(self, context_id: str | None) -> None:
        """Cancel one context, or all. After `audio.cancelled` none of its audio is sent."""
        cancelled = [
            utterance
            for utterance in self._utterances
            if context_id is None or utterance.context_id == context_id
        ]
        for utterance in cancelled:
            self._utterances.remove(utterance)
            assert utterance.task is not None
            utterance.task.cancel()
        index = cancelled[0].index if cancelled else None
        name = {} if context_id is None else {"context_id": context_id}
        await self.send({"type": "audio.cancelled", "utterance_index": index, **name})

    def _find_open(self, context_id: str | None) -> OmniUtterance | None:
        for utterance in self._utterances:
            if utterance.context_id == context_id and not utterance.text.is_ended:
                return utterance
        return None

    def _begin(self, context_id: str | None) -> OmniUtterance:
        if self._config is None:
            raise RefusedError("send session.config first", code="no_config")
        if len(self._utterances) >= MAX_UTTERANCES:
            raise RefusedError(
                f"{MAX_UTTERANCES} utterances are pending; read their audio first",
                status=429,
                code="too_many_utterances",
            )
        text = LiveText(self.context.settings.max_text_chars)
        utterance = OmniUtterance(self, self._num_utterances, context_id, self._config, text)
        self._num_utterances += 1
        self._utterances.append(utterance)
        utterance.task = self.start(self._speak(utterance))
        return utterance

    # -- speech ------------------------------------------------------------------------------

    async def _speak(self, utterance: OmniUtterance) -> None:
        try:
            async with self._turn:
                await utterance.config.speech.speak(utterance.text, utterance)
                if not self.is_closed:
                    await utterance.send("session.done", total_sentences=int(utterance.is_spoken))
        finally:
            if utterance in self._utterances:
                self._utterances.remove(utterance)


def _in_milliseconds(word: Word) -> dict[str, Any]:
    return {
        "word": word.text,
        "start_ms": round(1000 * word.start_s),
        "end_ms": round(1000 * word.end_s),
    }


def error_fields(failure: Failure) -> dict[str, Any]:
    fields: dict[str, Any] = {"message": failure.message, "code": failure.code}
    if failure.param is not None:
        fields["param"] = failure.param
    if failure.retry_s is not None:
        fields["retry_after_ms"] = round(failure.retry_s * 1000)
    return fields


def read_context_id(message: dict[str, Any]) -> str | None:
    context_id = message.get("context_id")
    if context_id is None or (isinstance(context_id, str) and len(context_id) <= MAX_CONTEXT_CHARS):
        return context_id
    raise RefusedError(
        f"context_id must be a string of at most {MAX_CONTEXT_CHARS} characters", param="context_id"
    )
