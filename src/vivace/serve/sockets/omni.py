"""`/v1/audio/speech/stream`: the messages of vLLM-Omni, spoken word by word, with a way to cancel.

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

from starlette.websockets import WebSocket, WebSocketDisconnect

from vivace.live_text import LiveText
from vivace.serve.errors import Failure, RefusedError, describe
from vivace.serve.sockets.session import BROKEN, Session
from vivace.serve.sockets.speech import Speaker, Studio
from vivace.serve.speech import Ending
from vivace.serve.sse import as_json
from vivace.speech import Word

MAX_UTTERANCES = 8  # spoken, waiting and being written, of one connection
MAX_CONTEXT_CHARS = 128
DEFAULT_FORMAT = "wav"
TYPES = "session.config, input.text, input.done, input.cancel, session.close"


@dataclass(slots=True, eq=False)
class Utterance:
    """From its first text to its `session.done`."""

    index: int
    context_id: str | None
    speaker: Speaker
    is_whole: bool  # one frame with the whole file
    has_events: bool  # words in messages of their own, between the audio
    text: LiveText
    task: asyncio.Task[None] | None = None
    num_bytes: int = 0
    num_chunks: int = 0
    num_words: int = 0  # that were told; -1: that there are none was told

    def tag(self, type: str, **fields: Any) -> dict[str, Any]:
        """A message about this utterance."""
        name = {} if self.context_id is None else {"context_id": self.context_id}
        return {"type": type, "utterance_index": self.index, **fields, **name}


class OmniSession(Session):
    def __init__(self, websocket: WebSocket, studio: Studio) -> None:
        super().__init__(websocket, studio.context)
        self._studio = studio
        self._speaker: Speaker | None = None
        self._is_whole = self._has_events = False
        self._utterances: list[Utterance] = []  # in the order of their first text
        self._num_utterances = 0
        self._turn = asyncio.Lock()  # first come, first spoken

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
                f"no message is of type {str(kind)[:80]!r}; try one of: {TYPES}",
                code="unknown_type",
                param="type",
            )

    # -- messages ----------------------------------------------------------------------------

    async def _configure(self, message: dict[str, Any]) -> None:
        if any(not utterance.text.is_ended for utterance in self._utterances):
            raise RefusedError(
                "session.config came inside an utterance; send input.done or input.cancel first",
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
            raise RefusedError("word_events is true or false", param="word_events")
        if has_events:
            fields["word_timestamps"] = True
        self._speaker = await self._studio.choose({"response_format": DEFAULT_FORMAT, **fields})
        self._is_whole, self._has_events = is_whole, has_events

    def _add(self, message: dict[str, Any]) -> None:
        text, context_id = message.get("text"), read_context_id(message)
        if not isinstance(text, str):
            raise RefusedError("the text of input.text is a string", param="text")
        utterance = self._find_open(context_id)
        if utterance is None and text:
            utterance = self._begin(context_id)
        if utterance is not None:
            utterance.text.add(text)

    async def _cancel(self, context_id: str | None) -> None:
        """Stop one context, or everything; after the answer nothing more of it is sent."""
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

    def _find_open(self, context_id: str | None) -> Utterance | None:
        for utterance in self._utterances:
            if utterance.context_id == context_id and not utterance.text.is_ended:
                return utterance
        return None

    def _begin(self, context_id: str | None) -> Utterance:
        if self._speaker is None:
            raise RefusedError("session.config comes first", code="no_config")
        if len(self._utterances) >= MAX_UTTERANCES:
            raise RefusedError(
                f"{MAX_UTTERANCES} utterances wait already; read their audio first",
                status=429,
                code="too_many_utterances",
            )
        text = LiveText(self.context.settings.max_text_chars)
        how = self._is_whole, self._has_events
        utterance = Utterance(self._num_utterances, context_id, self._speaker, *how, text)
        self._num_utterances += 1
        self._utterances.append(utterance)
        utterance.task = self.start(self._speak(utterance))
        return utterance

    # -- speech ------------------------------------------------------------------------------

    async def _speak(self, utterance: Utterance) -> None:
        try:
            async with self._turn:
                await self._send_utterance(utterance)
        finally:
            if utterance in self._utterances:
                self._utterances.remove(utterance)

    async def _send_utterance(self, utterance: Utterance) -> None:
        num_sentences = 0
        try:
            if await utterance.text.has_words():
                await self._send_audio(utterance)
                num_sentences = 1
            elif utterance.text.num_chars:
                raise RefusedError("the text is blank", code="empty_input", param="text")
        except WebSocketDisconnect:
            raise
        except Exception as error:
            await self._fail(utterance, describe(error))
        if not self.is_closed:
            await self.send(utterance.tag("session.done", total_sentences=num_sentences))

    async def _send_audio(self, utterance: Utterance) -> None:
        speaker, ending = utterance.speaker, Ending()

        async def send(data: bytes) -> None:
            if not utterance.num_bytes:
                start = utterance.tag("audio.start", sentence_index=0, channels=1)
                start["format"] = speaker.request.response_format
                start["sample_rate"] = speaker.sample_rate
                start |= {"word_timestamps": True} if has_words else {}
                await self.send({**start, "sentence_text": utterance.text.received})
            utterance.num_bytes += len(data)
            await self._send_words(utterance, ending.words)
            await (self._send_chunk(utterance, data) if has_words else self.send(data))

        has_words = speaker.request.word_timestamps and not utterance.has_events
        is_whole = utterance.is_whole
        await speaker.speak(utterance.text, send, is_whole=is_whole, ending=ending)
        await self._send_words(utterance, ending.words)
        if has_words:
            words = (
                None
                if ending.words is None
                else [
                    {
                        "word": word.text,
                        "start_ms": round(1000 * word.start_s),
                        "end_ms": round(1000 * word.end_s),
                    }
                    for word in ending.words
                ]
            )
            await self._send_chunk(utterance, b"", words)
        facts = {"finish_reason": ending.reason, **ending.usage_fields}
        await self.send(self._done(utterance, error=False, **facts))

    async def _send_words(self, utterance: Utterance, words: Sequence[Word] | None) -> None:
        """Those that the client was not told yet; null, once: the model gives no timings."""
        new = None if words is None else words[utterance.num_words :]
        if not utterance.has_events or new == () or utterance.num_words < 0:
            return
        utterance.num_words = -1 if words is None else len(words)
        rows = None if new is None else list(map(as_json, new))
        await self.send(utterance.tag("audio.words", words=rows))

    async def _send_chunk(
        self, utterance: Utterance, data: bytes, words: Sequence[dict[str, Any]] | None = None
    ) -> None:
        """Audio, or at the end all words; None with no audio: the model gives no timings."""
        audio = base64.b64encode(data).decode("ascii")
        number, utterance.num_chunks = utterance.num_chunks, utterance.num_chunks + 1
        fields = {"chunk_id": number, "audio_b64": audio, "timestamps": words}
        await self.send(utterance.tag("audio.chunk", sentence_index=0, **fields))

    async def _fail(self, utterance: Utterance, failure: Failure) -> None:
        """Before its first audio only the utterance ends, and what is still written of it is
        passed over; later the connection ends, so that nobody takes half for the whole."""
        if not utterance.num_bytes:
            await self.send(utterance.tag("error", **error_fields(failure)))
            await utterance.text.wait_end()
            return
        told = {**error_fields(failure), "partial_audio": True, "action": "discard"}
        await self.send(utterance.tag("error", **told))
        await self.send(self._done(utterance, error=True))
        await self.close(BROKEN, failure.message)

    @staticmethod
    def _done(utterance: Utterance, **fields: Any) -> dict[str, Any]:
        return utterance.tag(
            "audio.done", sentence_index=0, total_bytes=utterance.num_bytes, **fields
        )


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
        f"context_id is a string of at most {MAX_CONTEXT_CHARS} characters", param="context_id"
    )
