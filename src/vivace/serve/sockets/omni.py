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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, TypeAdapter
from starlette.websockets import WebSocket

from vivace.audio.formats import SpeechFormat
from vivace.live_text import LiveText
from vivace.serve.context import ServeContext
from vivace.serve.errors import Failure, FieldNames, RefusedError, describe
from vivace.serve.http.bodies import as_base64, word_as_json
from vivace.serve.input.validation import ClientInput, read_message
from vivace.serve.sockets.session import BROKEN, SocketSession
from vivace.serve.speaking.request import LATER, SpeechRequest
from vivace.serve.speaking.speak import PreparedSpeech, SpeechReport, SpeechSink, Words, prepare
from vivace.serve.speaking.utterance_queue import UtteranceQueue
from vivace.speech import Word

MAX_CONTEXT_CHARS = 128
ContextId = Annotated[str, StringConstraints(max_length=MAX_CONTEXT_CHARS)]


class SessionConfig(SpeechRequest):
    type: Literal["session.config"]
    input: str = LATER
    response_format: SpeechFormat = "wav"
    stream_audio: bool = True  # false: the audio is one message with the whole file
    word_events: bool = False  # words are messages between the audio

    @property
    def names(self) -> FieldNames:
        return {**super().names, "input": "text"}  # of `input.text`

    @property
    def has_chunks(self) -> bool:
        """Audio is base64 in JSON, and the words follow the audio."""
        return self.word_timestamps and not self.word_events


class InputMessage(ClientInput):
    context_id: ContextId | None = None


class InputText(InputMessage):
    type: Literal["input.text"]
    text: str


class InputDone(InputMessage):
    type: Literal["input.done"]


class InputCancel(InputMessage):
    type: Literal["input.cancel"]


class SessionClose(ClientInput):
    type: Literal["session.close"]


Message = SessionConfig | InputText | InputDone | InputCancel | SessionClose
MESSAGES: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="type")])


@dataclass(slots=True, eq=False)
class OmniUtterance(SpeechSink):
    """One utterance from its first text to `session.done`: the sink of its speech."""

    session: OmniSession
    index: int
    context_id: str | None
    config: SessionConfig
    speech: PreparedSpeech
    text: LiveText
    num_bytes: int = 0
    num_chunks: int = 0
    has_sent_null: bool = False  # in `audio.words`, for a checkpoint without timings
    is_spoken: bool = False

    @property
    def is_whole(self) -> bool:
        return not self.config.stream_audio

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
            **report.provenance_field,
        )

    async def write(self, audio: bytes, words: Words) -> None:
        if self.config.word_events and (words or (words is None and not self.has_sent_null)):
            self.has_sent_null = words is None
            rows = None if words is None else list(map(word_as_json, words))
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
            audio_b64=as_base64(audio),
            timestamps=rows,
        )
        self.num_chunks += 1

    async def _send_done(self, **fields: Any) -> None:
        await self.send("audio.done", sentence_index=0, total_bytes=self.num_bytes, **fields)


class OmniSession(SocketSession):
    def __init__(self, websocket: WebSocket, context: ServeContext) -> None:
        super().__init__(websocket, context)
        self._config: tuple[SessionConfig, PreparedSpeech] | None = None
        self._num_utterances = 0
        self._utterances = UtteranceQueue[OmniUtterance](self.start, self._speak)

    def is_busy(self) -> bool:
        return self._utterances.is_busy

    async def refuse(self, failure: Failure) -> None:
        await self.send({"type": "error", **error_fields(failure)})

    async def handle(self, message: dict[str, Any]) -> None:
        match read_message(MESSAGES, message):
            case SessionConfig() as config:
                await self._configure(config)
            case InputText(text=text, context_id=context_id):
                if text:
                    self._find_or_begin(context_id).text.add(text)
            case InputDone(context_id=context_id):
                self._find_or_begin(context_id).text.end()
            case InputCancel(context_id=context_id):
                await self._cancel(context_id)
            case SessionClose():
                await self.close()

    # -- messages ----------------------------------------------------------------------------

    async def _configure(self, config: SessionConfig) -> None:
        if any(not utterance.text.is_ended for utterance in self._utterances):
            raise RefusedError(
                "session.config inside an utterance; send input.done or input.cancel first",
                code="utterance_open",
            )
        if config.word_timestamps and not (config.stream_audio and config.response_format == "pcm"):
            raise RefusedError(
                "word_timestamps need response_format 'pcm' and stream_audio",
                param="word_timestamps",
            )
        if config.word_events:
            config = config.model_copy(update={"word_timestamps": True})
        self._config = config, await prepare(self.context, config)

    async def _cancel(self, context_id: str | None) -> None:
        """Cancel one context, or all. After `audio.cancelled` none of its audio is sent."""
        cancelled = [one for one in self._utterances if context_id in (None, one.context_id)]
        for utterance in cancelled:
            self._utterances.cancel(utterance)
        index = cancelled[0].index if cancelled else None
        name = {} if context_id is None else {"context_id": context_id}
        await self.send({"type": "audio.cancelled", "utterance_index": index, **name})

    def _find_or_begin(self, context_id: str | None) -> OmniUtterance:
        """The context's utterance whose text has not ended, or a new one."""
        for utterance in self._utterances:
            if utterance.context_id == context_id and not utterance.text.is_ended:
                return utterance
        if self._config is None:
            raise RefusedError("send session.config first", code="no_config")
        text = LiveText(self.context.settings.max_text_chars)
        utterance = OmniUtterance(self, self._num_utterances, context_id, *self._config, text)
        self._utterances.add(utterance)
        self._num_utterances += 1
        return utterance

    async def _speak(self, utterance: OmniUtterance) -> None:
        await utterance.speech.speak(utterance.text, utterance)
        if not self.is_closed:
            await utterance.send("session.done", total_sentences=int(utterance.is_spoken))


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
