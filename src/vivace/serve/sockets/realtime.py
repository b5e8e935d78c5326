"""`/v1/realtime`: the part of OpenAI's Realtime events that text-to-speech needs.

There is no language model: the `input_text` of a client is spoken as it is. `instructions`, which
are meant for a language model, are ignored.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from typing import Any

from starlette.websockets import WebSocket

from vivace.serve.context import ServeContext
from vivace.serve.errors import Failure, RefusedError, describe
from vivace.serve.sockets.session import SocketSession
from vivace.serve.speak import PreparedSpeech, SpeechReport, SpeechSink, Words, prepare
from vivace.speech import SAMPLE_RATE

PCM = {"type": "audio/pcm", "rate": SAMPLE_RATE}
MAX_ITEMS = 256  # of a conversation
TYPES = "session.update, conversation.item.create, response.create, response.cancel"
AUDIO_INPUT = ("input_audio_buffer.", "output_audio_buffer.")


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
            delta = base64.b64encode(audio).decode("ascii")
            await self._send("response.output_audio.delta", delta=delta)

    async def finish(self, audio: bytes, words: Words, report: SpeechReport) -> None:
        await self.write(audio, words)
        await self._send("response.output_audio.done")
        await self._send("response.output_audio_transcript.done", transcript=self._text)
        await self._send_item("done", self._item("completed", self._text))
        usage = {"output_tokens": report.num_frames, **report.usage_fields}
        await self._session.end({**self.as_json("completed", self._text), "usage": usage})

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
        self._model = websocket.query_params.get("model")
        self._voice: str | None = None
        self._speed = 1.0
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
        if kind == "session.update":
            await self._update(read_object(message, "session"))
        elif kind == "conversation.item.create":
            await self._add_item(read_object(message, "item"))
        elif kind == "response.create":
            await self._create(read_object(message, "response"))
        elif kind == "response.cancel":
            await self._cancel(message.get("response_id"))
        elif isinstance(kind, str) and kind.startswith(AUDIO_INPUT):
            raise RefusedError("audio input is not supported", code="no_audio_input")
        else:
            raise RefusedError(
                f"type {str(kind)[:80]!r} is unknown; try one of: {TYPES}",
                code="unknown_event",
                param="type",
            )

    # -- events of the client ----------------------------------------------------------------

    async def _update(self, session: dict[str, Any]) -> None:
        output = read_output(session)
        voice = output.get("voice", session.get("voice", self._voice))
        speed = output.get("speed", session.get("speed", self._speed))
        model = session.get("model", self._model)
        await self._prepare(model, voice, speed)
        self._model, self._voice, self._speed = model, voice, speed
        await self.send_event("session.updated", session=self._session())

    async def _add_item(self, item: dict[str, Any]) -> None:
        if len(self._unspoken) >= MAX_ITEMS:
            raise RefusedError(f"{MAX_ITEMS} items are pending; send response.create", status=429)
        self._unspoken += read_texts([item])
        shown = {"id": new_id("item"), "object": "realtime.item", "status": "completed", **item}
        await self.send_event("conversation.item.added", item=shown)
        await self.send_event("conversation.item.done", item=shown)

    async def _create(self, response: dict[str, Any]) -> None:
        if self._response is not None:
            raise RefusedError(
                f"the response {self._response.id} is still active",
                code="conversation_already_has_active_response",
            )
        output, given = read_output(response), response.get("input")
        voice = output.get("voice", response.get("voice", self._voice))
        text = "\n".join(self._unspoken if given is None else read_texts(given))
        speech = await self._prepare(self._model, voice, output.get("speed", self._speed), text)
        if given is None:
            self._unspoken = []
        self._response = RealtimeResponse(self, text, response.get("metadata"))
        self._response.task = self.start(self._speak(self._response, speech, text))

    async def _cancel(self, response_id: object) -> None:
        response = self._response
        if response is None or response_id not in (None, response.id):
            raise RefusedError(
                "response_id: no such response is active", code="response_cancel_not_active"
            )
        assert response.task is not None
        response.task.cancel()
        await self.end(response.as_json("cancelled"))

    async def _prepare(
        self, model: object, voice: object, speed: object, text: str | None = None
    ) -> PreparedSpeech:
        fields = {"model": model, "voice": voice, "speed": speed}
        fields |= {"response_format": "pcm", "sample_rate": SAMPLE_RATE}
        return await prepare(self.context, fields, text)

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
        output = {"format": PCM, "voice": self._voice, "speed": self._speed}
        return {
            "id": self._id,
            "object": "realtime.session",
            "type": "realtime",
            "model": self._model or self.context.models.default,
            "output_modalities": ["audio"],
            "instructions": "",
            "tools": [],
            "tool_choice": "none",
            "audio": {"input": {"turn_detection": None, "transcription": None}, "output": output},
        }


def read_object(message: dict[str, Any], name: str) -> dict[str, Any]:
    value = message.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RefusedError(f"{name} must be an object, not {type(value).__name__}", param=name)
    return value


def read_texts(items: object) -> list[str]:
    """The texts of the content parts `input_text` and `text`."""
    if not isinstance(items, list):
        raise RefusedError("input must be a list of items", param="input")
    texts = []
    for item in items:
        content = item.get("content") if isinstance(item, dict) else None
        if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
            raise RefusedError("an item must be a message with a list of content", param="item")
        for part in content:
            text = part.get("text")
            if not isinstance(text, str):
                kind = str(part.get("type"))[:40]
                raise RefusedError(f"content must be input_text, not {kind!r}", param="content")
            texts.append(text)
    return texts


def read_output(fields: dict[str, Any]) -> dict[str, Any]:
    """The object `audio.output`. Its format is PCM, in the current or OpenAI's former notation."""
    output = read_object(read_object(fields, "audio"), "output")
    if (format := output.get("format")) not in (None, "pcm16", PCM, {"type": "audio/pcm"}):
        raise RefusedError(f"format must be {PCM}, not {str(format)[:80]}", param="format")
    return output


def new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"
