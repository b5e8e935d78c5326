"""ElevenLabs' WebSockets: `stream-input`, and `multi-stream-input` with several contexts.

    client                                                server
    {"text": " ", "voice_settings": {…}}
    {"text": "Hello "} *                                  {"audio": base64, "isFinal": null} *
    {"flush": true}: speak the text so far                with "alignment", if requested
    {"text": ""}: the end                                 {"isFinal": true}, closed with 1000

With contexts, `context_id` selects a context, `close_context` ends it, `close_socket` ends all, and
an empty text only keeps the connection open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import AliasChoices, Field
from starlette.websockets import WebSocket

from vivace.live_text import LiveText
from vivace.serve.context import ServeContext
from vivace.serve.errors import Failure, RefusedError, describe
from vivace.serve.http.bodies import as_base64
from vivace.serve.routes.elevenlabs import NAMES, SpeechFields, SpeechQuery, speech_fields
from vivace.serve.sockets.omni import ContextId
from vivace.serve.sockets.session import BROKEN, FULL, POLICY, SocketSession
from vivace.serve.speaking.alignment import Aligner, as_milliseconds
from vivace.serve.speaking.request import LATER, SpeechRequest
from vivace.serve.speaking.speak import PreparedSpeech, SpeechReport, SpeechSink, Words, prepare
from vivace.speech import Word

MAX_CONTEXTS = 8  # per connection
MAX_UTTERANCES = 64  # pending flushes per context


class TextMessage(SpeechFields):
    """Every message. The fields of a voice count in the first message of a context."""

    text: str | None = None
    flush: bool = False
    context_id: ContextId | None = Field(
        None, validation_alias=AliasChoices("context_id", "contextId")
    )
    close_context: bool = False
    close_socket: bool = False


@dataclass(slots=True, eq=False)
class VoiceContext:
    """A voice that speaks one utterance after another."""

    id: str | None
    speech: PreparedSpeech
    is_synced: bool  # `sync_alignment`
    text: LiveText | None = None  # of the current utterance
    audio_s: float = 0.0  # of finished utterances
    skipped: list[str] = field(default_factory=list)  # letters that the checkpoint does not read
    provenance: dict[str, str] = field(default_factory=dict)  # of the speech so far
    aligned_ms: int = 0  # the end of the last alignment
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    is_ended: bool = False
    is_failed: bool = False  # further text is ignored

    def align(self, aligner: Aligner, text: str, words: Sequence[Word], **last: bool) -> Any:
        """Times count from the end of the last alignment, as ElevenLabs documents. With
        `sync_alignment`, which LiveKit sends, they count from the start of the context."""
        chars, edges = aligner.take(text, words, **last)
        if not chars:
            return None
        aligned = as_milliseconds(chars, edges, 0 if self.is_synced else self.aligned_ms)
        self.aligned_ms = round(1000 * edges[-1])
        return aligned

    def tag(self, message: dict[str, Any]) -> dict[str, Any]:
        return message if self.id is None else {**message, "contextId": self.id}


class ElevenLabsSession(SocketSession):
    def __init__(
        self, websocket: WebSocket, context: ServeContext, voice_id: str, *, has_contexts: bool
    ) -> None:
        super().__init__(websocket, context)
        self._voice_id, self._has_contexts = voice_id, has_contexts
        self._query: Mapping[str, str] = websocket.query_params
        self._contexts: dict[str | None, VoiceContext] = {}
        self._is_over = False  # the client has ended its text

    def is_busy(self) -> bool:
        contexts = self._contexts.values()
        return any(context.tasks for context in contexts if context.text is None)

    async def refuse(self, failure: Failure) -> None:
        """Send an error and close. Clients treat a message with the key `message` as an error."""
        await self.send(error_message(failure))
        await self.close(close_code(failure), failure.message)

    async def handle(self, message: dict[str, Any]) -> None:
        read = TextMessage.read(message)
        key = read.context_id if self._has_contexts else None
        if self._has_contexts and read.close_socket:
            self._is_over = True
            for context in list(self._contexts.values()):
                self._end(context)
            await self._close_if_over()
        elif self._is_over:
            if read.text or read.flush:
                raise RefusedError("text was sent after the end", code="text_after_end")
        elif self._has_contexts and read.close_context:
            if key in self._contexts:
                self._end(self._contexts[key])
        elif read.text == "":
            await self._take_empty(key, read)
        elif read.text is None and not read.flush:
            raise RefusedError("text is missing", param="text", code="missing_field")
        else:
            await self._take_text(key, read)

    # -- messages ----------------------------------------------------------------------------

    async def _take_text(self, key: str | None, message: TextMessage) -> None:
        context = self._contexts.get(key) or await self._open(key, message)
        try:
            self._add(context, message.text or "")
        except RefusedError as error:
            if not self._has_contexts:
                raise
            # Other contexts go on, as in `fail`.
            await self.send(context.tag(error_message(describe(error))))
        if message.flush:
            self._flush(context)

    async def _take_empty(self, key: str | None, message: TextMessage) -> None:
        """The end of the text; with contexts a keep-alive or a flush."""
        context = self._contexts.get(key)
        if self._has_contexts:
            if context is not None and message.flush:
                self._flush(context)
            return
        self._is_over = True
        self._end(context or await self._open(key, message))

    async def _open(self, key: str | None, message: TextMessage) -> VoiceContext:
        if len(self._contexts) >= MAX_CONTEXTS:
            raise RefusedError(
                f"{MAX_CONTEXTS} contexts are open; close one first", status=429,
                code="too_many_contexts",
            )  # fmt: skip
        query, settings = SpeechQuery.read(self._query), self.context.settings
        # Agents need word times even if they do not request them, e.g. pipecat.
        is_timed = self._has_contexts if query.sync_alignment is None else query.sync_alignment
        fields = speech_fields(self._voice_id, query, message)
        fields |= {"input": LATER, "word_timestamps": is_timed}
        speech = await prepare(self.context, SpeechRequest.read(fields, settings, NAMES))
        context = VoiceContext(key, speech, bool(query.sync_alignment))
        if query.inactivity_timeout is not None:
            self.idle_s = min(float(query.inactivity_timeout), settings.socket_idle_s)
        self._contexts[key] = context
        return context

    def _add(self, context: VoiceContext, text: str) -> None:
        if context.is_ended:
            raise RefusedError("text was sent to a closed context", code="text_after_end")
        if context.is_failed:
            return
        if context.text is None:
            if not text.strip():  # the first message and keep-alives
                return
            if len(context.tasks) >= MAX_UTTERANCES:
                raise RefusedError(
                    f"{MAX_UTTERANCES} flushes are pending; read their audio first", status=429,
                    code="too_many_utterances",
                )  # fmt: skip
            context.text = LiveText(self.context.settings.max_text_chars)
            self._speak_later(context, self._speak(context, context.text))
        context.text.add(text)

    def _flush(self, context: VoiceContext) -> None:
        if context.text is not None:
            context.text.end()
            context.text = None

    def _end(self, context: VoiceContext) -> None:
        if not context.is_ended:
            context.is_ended = True
            self._flush(context)
            self._speak_later(context, self._send_final(context))

    # -- speech ------------------------------------------------------------------------------

    def _speak_later(self, context: VoiceContext, speech: Any) -> None:
        task = self.start(speech)
        context.tasks.add(task)
        task.add_done_callback(context.tasks.discard)

    async def _speak(self, context: VoiceContext, text: LiveText) -> None:
        async with context.turn:
            if not context.is_failed:
                await context.speech.speak(text, ContextUtterance(self, context, text))

    async def _send_final(self, context: VoiceContext) -> None:
        async with context.turn:
            skipped = {"skipped": context.skipped} if context.skipped else {}
            facts = {**skipped, **context.provenance}
            await self.send(context.tag({"audio": None, "isFinal": True, **facts}))
        self._contexts.pop(context.id, None)
        await self._close_if_over()

    async def _close_if_over(self) -> None:
        if self._is_over and not self._contexts and not self.is_closed:
            await self.close()

    async def fail(self, context: VoiceContext, failure: Failure) -> None:
        """End the failed context, or the connection if it has no contexts."""
        if not self._has_contexts:
            await self.refuse(failure)
            return
        context.is_failed = True
        context.text = None
        await self.send(context.tag(error_message(failure)))


class ContextUtterance(SpeechSink):
    """One utterance of a context: the sink of its speech."""

    def __init__(self, session: ElevenLabsSession, context: VoiceContext, text: LiveText) -> None:
        self._session, self._context, self._text = session, context, text
        self._aligner = Aligner(context.audio_s)

    async def write(self, audio: bytes, words: Words, *, is_last: bool = False) -> None:
        aligned = None
        if words or (is_last and words is not None):
            text = self._text.received
            aligned = self._context.align(self._aligner, text, words, is_last=is_last)
        if audio or aligned:
            encoded = as_base64(audio) if audio else None
            times = {"alignment": aligned, "normalizedAlignment": aligned}
            message = {"audio": encoded, "isFinal": None, **times}
            await self._session.send(self._context.tag(message))

    async def finish(self, audio: bytes, words: Words, report: SpeechReport) -> None:
        await self.write(audio, words, is_last=True)
        self._context.audio_s += report.audio_s
        self._context.skipped += report.skipped
        self._context.provenance = report.provenance_field

    async def fail(self, error: Exception) -> None:
        await self._session.fail(self._context, describe(error))


def error_message(failure: Failure) -> dict[str, Any]:
    return {"message": failure.message, "error": failure.code, "code": close_code(failure)}


def close_code(failure: Failure) -> int:
    if failure.status in (429, 503):
        return FULL
    return BROKEN if failure.status >= 500 else POLICY
