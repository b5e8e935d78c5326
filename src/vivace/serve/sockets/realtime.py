"""`/v1/realtime`: the part of OpenAI's Realtime events that text-to-speech needs.

There is no language model: the `input_text` of a client is spoken as it is. `instructions`, which
are meant for a language model, are ignored.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, AliasPath, ConfigDict, Field, TypeAdapter
from starlette.websockets import WebSocket

from vivace.serve.context import ServeContext
from vivace.serve.errors import Failure, FieldNames, RefusedError, describe
from vivace.serve.http.bodies import as_base64
from vivace.serve.input.validation import ClientInput, read_message
from vivace.serve.sockets.session import SocketSession
from vivace.serve.speaking.request import LATER, SpeechRequest, VoiceName
from vivace.serve.speaking.speak import PreparedSpeech, SpeechReport, SpeechSink, Words, prepare
from vivace.speech import SAMPLE_RATE, shown

PCM = {"type": "audio/pcm", "rate": SAMPLE_RATE}
MAX_ITEMS = 256  # of a conversation
AUDIO_INPUT = ("input_audio_buffer.", "output_audio_buffer.")


def _check_format(format: object) -> object:
    """PCM, in the current or OpenAI's former notation."""
    if format not in (None, "pcm16", PCM, {"type": "audio/pcm"}):
        raise ValueError(f"must be {PCM}, not {shown(format)}")
    return format


def _output(name: str) -> Any:
    """A field of `audio.output`, or in OpenAI's former notation of the object itself."""
    return Field(None, validation_alias=AliasChoices(AliasPath("audio", "output", name), name))


class SessionFields(ClientInput):
    """A session or a response."""

    model: str | None = None
    voice: VoiceName | None = _output("voice")
    speed: float | None = _output("speed")
    format: Annotated[Any, AfterValidator(_check_format)] = _output("format")

    @property
    def given(self) -> dict[str, Any]:
        """The given fields of a `SpeechRequest`."""
        return self.model_dump(include={"model", "voice", "speed"}, exclude_none=True)


def sent_names(place: str, sent: Any) -> FieldNames:
    """The paths of the fields of a `SpeechRequest` in an event, whose object `place` is `sent`."""
    names = {"model": f"{place}.model", "input": f"{place}.input"}
    for name in ("voice", "speed"):
        is_former = isinstance(sent, dict) and sent.get(name) is not None
        names[name] = f"{place}.{name}" if is_former else f"{place}.audio.output.{name}"
    return names


class ContentPart(ClientInput):
    model_config = ConfigDict(extra="allow")

    type: Literal["input_text", "text", "output_text"] = "input_text"
    text: str


class Item(ClientInput):
    model_config = ConfigDict(extra="allow")

    content: list[ContentPart]

    @property
    def texts(self) -> list[str]:
        return [part.text for part in self.content]


class ResponseFields(SessionFields):
    input: list[Item] | None = None
    metadata: Any = None


class SessionUpdate(ClientInput):
    type: Literal["session.update"]
    session: SessionFields = SessionFields()


class ItemCreate(ClientInput):
    type: Literal["conversation.item.create"]
    item: Item


class ResponseCreate(ClientInput):
    type: Literal["response.create"]
    response: ResponseFields = ResponseFields()


class ResponseCancel(ClientInput):
    type: Literal["response.cancel"]
    response_id: str | None = None


Event = SessionUpdate | ItemCreate | ResponseCreate | ResponseCancel
EVENTS: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="type")])


class RealtimeResponse(SpeechSink):
    """One response of the server: the sink of its speech."""

    def __init__(self, session: RealtimeSession, text: str, metadata: object) -> None:
        self.id, self.item_id = new_id("resp"), new_id("item")
        self.task: asyncio.Task[None] | None = None
        self._session, self._text, self._metadata = session, text, metadata
        self._part: dict[str, Any] = {
            "response_id": self.id,
            "item_id": self.item_id,
            "output_index": 0,
            "content_index": 0,
        }

    def as_json(self, status: str, text: str | None = None) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "realtime.response",
            "status": status,
            "status_details": None,
            "metadata": self._metadata,
            "output_modalities": ["audio"],
            "output": [] if text is None else [self._item(status, text)],
        }

    def _item(self, status: str, text: str | None) -> dict[str, Any]:
        return {
            "id": self.item_id,
            "object": "realtime.item",
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": [] if text is None else [{"type": "output_audio", "transcript": text}],
        }

    async def announce(self) -> None:
        """Send the events that come before the audio."""
        await self._session.send_event("response.created", response=self.as_json("in_progress"))
        await self._send_item("added", self._item("in_progress", None))

    # -- the sink --------------------------------------------------------------------------------

    async def write(self, audio: bytes, words: Words) -> None:
        if audio:
            await self._send("response.output_audio.delta", delta=as_base64(audio))

    async def finish(self, audio: bytes, words: Words, report: SpeechReport) -> None:
        await self.write(audio, words)
        await self._send("response.output_audio.done")
        await self._send("response.output_audio_transcript.done", transcript=self._text)
        await self._send_item("done", self._item("completed", self._text))
        usage = {"output_tokens": report.num_frames, **report.usage_fields}
        facts = {"usage": usage, **report.provenance_field}
        await self._session.end({**self.as_json("completed", self._text), **facts})

    async def fail(self, error: Exception) -> None:
        details = {"type": "failed", **describe(error).body}
        await self._session.end({**self.as_json("failed"), "status_details": details})

    async def _send_item(self, event: str, item: dict[str, Any]) -> None:
        place = {"response_id": self.id, "output_index": 0}
        await self._session.send_event(f"response.output_item.{event}", **place, item=item)

    async def _send(self, type: str, **fields: Any) -> None:
        await self._session.send_event(type, **self._part, **fields)


class RealtimeSession(SocketSession):
    def __init__(self, websocket: WebSocket, context: ServeContext) -> None:
        super().__init__(websocket, context)
        self._fields: dict[str, Any] = {
            "model": websocket.query_params.get("model"),
            "voice": None,
            "speed": 1.0,
        }
        self._id = new_id("sess")
        self._unspoken: list[str] = []  # texts of the conversation since the last response
        self._client_event: object = None  # the id of the message that is being handled
        self._response: RealtimeResponse | None = None

    def is_busy(self) -> bool:
        return self._response is not None

    async def greet(self) -> None:
        await self.send_event("session.created", session=self._session())

    async def refuse(self, failure: Failure) -> None:
        error = {**failure.body["error"], "event_id": self._client_event}
        await self.send_event("error", error=error)

    async def handle(self, message: dict[str, Any]) -> None:
        kind, event_id = message.get("type"), message.get("event_id")
        self._client_event = event_id if isinstance(event_id, str) else None
        if isinstance(kind, str) and kind.startswith(AUDIO_INPUT):
            raise RefusedError("audio input is not supported", code="no_audio_input")
        match read_message(EVENTS, message, "unknown_event"):
            case SessionUpdate(session=session):
                await self._update(session, sent_names("session", message.get("session")))
            case ItemCreate(item=item):
                await self._add_item(item)
            case ResponseCreate(response=response):
                await self._create(response, sent_names("response", message.get("response")))
            case ResponseCancel(response_id=response_id):
                await self._cancel(response_id)

    # -- events of the client ----------------------------------------------------------------

    async def _update(self, session: SessionFields, names: FieldNames) -> None:
        fields = {**self._fields, **session.given}
        await self._prepare(fields, LATER, names)
        self._fields = fields
        await self.send_event("session.updated", session=self._session())

    async def _add_item(self, item: Item) -> None:
        if len(self._unspoken) >= MAX_ITEMS:
            raise RefusedError(f"{MAX_ITEMS} items are pending; send response.create", status=429)
        self._unspoken += item.texts
        known = {"id": new_id("item"), "object": "realtime.item", "status": "completed"}
        shown = {**known, **item.model_dump(exclude_unset=True)}
        await self.send_event("conversation.item.added", item=shown)
        await self.send_event("conversation.item.done", item=shown)

    async def _create(self, response: ResponseFields, names: FieldNames) -> None:
        if self._response is not None:
            raise RefusedError(
                f"the response {self._response.id} is still active",
                code="conversation_already_has_active_response",
            )
        texts = self._unspoken
        if response.input is not None:
            texts = [text for item in response.input for text in item.texts]
        text = "\n".join(texts)
        model = self._fields["model"]  # a response cannot change it
        fields = {**self._fields, **response.given, "model": model}
        speech = await self._prepare(fields, text, {**names, "model": "model"})
        if response.input is None:
            self._unspoken = []
        self._response = RealtimeResponse(self, text, response.metadata)
        self._response.task = self.start(self._speak(self._response, speech, text))

    async def _cancel(self, response_id: str | None) -> None:
        response = self._response
        if response is None or response_id not in (None, response.id):
            name = "" if response_id is None else f" {shown(response_id)}"
            raise RefusedError(
                f"no response{name} is active",
                code="response_cancel_not_active",
                param=response_id and "response_id",
            )
        assert response.task is not None
        response.task.cancel()
        await self.end(response.as_json("cancelled"))

    async def _prepare(
        self, fields: dict[str, Any], text: str, names: FieldNames
    ) -> PreparedSpeech:
        pcm = {"response_format": "pcm", "sample_rate": SAMPLE_RATE, "input": text}
        request = SpeechRequest.read({**fields, **pcm}, self.context.settings, names)
        return await prepare(self.context, request)

    # -- speech ------------------------------------------------------------------------------

    async def _speak(self, response: RealtimeResponse, speech: PreparedSpeech, text: str) -> None:
        await response.announce()
        await speech.speak(text, response)

    async def end(self, response: dict[str, Any]) -> None:
        """Send the last event of the active response."""
        self._response = None
        await self.send_event("response.done", response=response)

    async def send_event(self, type: str, **fields: Any) -> None:
        await self.send({"type": type, "event_id": new_id("event"), **fields})

    def _session(self) -> dict[str, Any]:
        fields = self._fields
        output = {"format": PCM, "voice": fields["voice"], "speed": fields["speed"]}
        return {
            "id": self._id,
            "object": "realtime.session",
            "type": "realtime",
            "model": fields["model"] or self.context.models.default,
            "output_modalities": ["audio"],
            "instructions": "",
            "tools": [],
            "tool_choice": "none",
            "audio": {"input": {"turn_detection": None, "transcription": None}, "output": output},
        }


def new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"
