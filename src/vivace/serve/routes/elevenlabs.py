"""Routes compatible with ElevenLabs: text to speech and the list of voices.

A request becomes one of `POST /v1/audio/speech`. Fields that Qwen3-TTS does not support
(`stability`, `similarity_boost`, `style`, previous and next text) are ignored.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vivace.serve.context import ServeContext
from vivace.serve.errors import RefusedError, with_field_names
from vivace.serve.http.bodies import JsonLines, as_base64
from vivace.serve.http.response import SpeechResponse
from vivace.serve.input.strict_json import read_json
from vivace.serve.input.validation import ClientInput
from vivace.serve.models.voices import ListedVoice
from vivace.serve.routes.lists import find_voices, no_such_voice
from vivace.serve.routes.openapi import audio_response, json_response, request_body
from vivace.serve.speaking.alignment import Aligner, as_seconds
from vivace.serve.speaking.request import SpeechRequest
from vivace.serve.speaking.speak import Words

DEFAULT_OUTPUT = "mp3_44100_128"
RATES = (8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
OUTPUTS: dict[str, tuple[str, int, int | None]] = {  # format, sample rate in Hz, bits per second
    f"{name}_{rate}": (name, rate, None) for name in ("pcm", "wav") for rate in RATES
}
OUTPUTS |= {
    f"{name}_{rate}_{kbits}": (name, rate, kbits * 1_000)
    for name, rate, all_kbits in (
        ("mp3", 22_050, (32,)),
        ("mp3", 24_000, (48,)),
        ("mp3", 44_100, (32, 64, 96, 128, 192)),
        ("opus", 48_000, (32, 64, 96, 128, 192)),
    )
    for kbits in all_kbits
}
# Fields of `SpeechRequest` as ElevenLabs' clients send them.
NAMES = {
    "input": "text",
    "voice": "voice_id",
    "model": "model_id",
    "language": "language_code",
    "speed": "voice_settings.speed",
    "response_format": "output_format",
    "sample_rate": "output_format",
    "bit_rate": "output_format",
}


class Alignment(BaseModel):
    characters: list[str]
    character_start_times_seconds: list[float]
    character_end_times_seconds: list[float]


class TimedAudio(BaseModel):
    """A line of a response with timestamps, for the API's description."""

    audio_base64: str
    alignment: Alignment | None
    normalized_alignment: Alignment | None


class VoiceSettings(ClientInput):
    speed: float | None = None


class SpeechFields(ClientInput):
    """Fields of a body, and of the first message of a context."""

    model_id: str | None = None
    language_code: str | None = None
    seed: int | None = None
    voice_settings: VoiceSettings = VoiceSettings()


class TextToSpeech(SpeechFields):
    text: str = Field(description="The text to speak.")


class SpeechQuery(ClientInput):
    """The query of a route or of a WebSocket; its values are text."""

    model_config = ConfigDict(strict=False)

    output_format: str = DEFAULT_OUTPUT
    model_id: str | None = None
    language_code: str | None = None
    seed: int | None = None
    sync_alignment: bool | None = None
    inactivity_timeout: int | None = Field(None, ge=1, le=3_600)  # in seconds

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, fields: Any) -> Any:
        return {name: value for name, value in fields.items() if value}

    @field_validator("output_format")
    @classmethod
    def _check_output(cls, name: str) -> str:
        if name not in OUTPUTS:
            raise RefusedError(
                f"output_format {name[:80]!r} is not supported; try one of: {', '.join(OUTPUTS)}",
                param="output_format",
                code="invalid_output_format",
            )
        return name


OUTPUT_FORMAT = {
    "name": "output_format",
    "in": "query",
    "schema": {"type": "string", "enum": list(OUTPUTS), "default": DEFAULT_OUTPUT},
}
REQUEST = {"parameters": [OUTPUT_FORMAT], **request_body(TextToSpeech)}
AUDIO_FORMATS = tuple(dict.fromkeys(name for name, *_ in OUTPUTS.values()))
AUDIO = audio_response("Audio in `output_format`.", AUDIO_FORMATS)
TIMED = json_response("Audio and its alignment, one object per line.", TimedAudio)


def routes(context: ServeContext) -> APIRouter:
    router = APIRouter()
    for is_stream, is_timed in itertools.product((False, True), repeat=2):
        suffix = "/stream" * is_stream + "/with-timestamps" * is_timed
        speech = "The speech as a stream" if is_stream else "The complete speech"
        times = ", as JSON with the time of every character" if is_timed else ""
        router.add_api_route(
            f"/v1/text-to-speech/{{voice_id}}{suffix}",
            _speak_endpoint(context, is_stream=is_stream, is_timed=is_timed),
            methods=["POST"],
            description=f"{speech}{times}.",
            response_class=Response,
            responses={200: TIMED if is_timed else AUDIO},
            openapi_extra=REQUEST,
        )

    @router.get("/v1/voices")
    async def voices() -> Response:
        listed = await asyncio.to_thread(find_voices, context)
        return JSONResponse({"voices": [voice_object(voice) for voice in listed]})

    @router.get("/v2/voices")
    async def search_voices(search: str = "") -> Response:
        """All voices as one page. `?search=` filters by name."""
        listed = await asyncio.to_thread(find_voices, context)
        found = [voice_object(voice) for voice in listed if search.lower() in voice.id.lower()]
        page = {"has_more": False, "total_count": len(found), "next_page_token": None}
        return JSONResponse({"voices": found, **page})

    @router.get("/v1/voices/{voice_id}")
    async def voice(voice_id: str) -> Response:
        listed = await asyncio.to_thread(find_voices, context)
        for voice in listed:
            if voice.id == voice_id:
                return JSONResponse(voice_object(voice))
        error = no_such_voice(voice_id, [voice.id for voice in listed])
        raise with_field_names(error, NAMES)

    return router


def _speak_endpoint(
    context: ServeContext, *, is_stream: bool, is_timed: bool
) -> Callable[[Request, str], Awaitable[Response]]:
    async def speak(http: Request, voice_id: str) -> Response:
        context.streams.check_open()
        context.admission.check()
        body = TextToSpeech.read(await read_json(http))
        fields = speech_fields(voice_id, SpeechQuery.read(http.query_params), body)
        fields |= {"input": body.text, "stream": is_stream, "word_timestamps": is_timed}
        request = SpeechRequest.read(fields, context.settings, NAMES)
        return SpeechResponse(context, request, TimedSpeech(body.text) if is_timed else None)

    return speak


def speech_fields(voice_id: str, query: SpeechQuery, body: SpeechFields) -> dict[str, Any]:
    """The fields of a `SpeechRequest` except its text."""
    format, rate, bit_rate = OUTPUTS[query.output_format]
    return {
        "voice": voice_id,
        "model": body.model_id or query.model_id,
        "language": body.language_code or query.language_code,
        "speed": body.voice_settings.speed,
        "seed": query.seed if body.seed is None else body.seed,
        "response_format": format,
        "sample_rate": rate,
        "bit_rate": bit_rate,
    }


class TimedSpeech(JsonLines):
    """Formats pieces of a speech as JSON with the times of the characters of `text`."""

    def __init__(self, text: str) -> None:
        self._text, self._aligner = text, Aligner()

    def as_json(self, audio: bytes, words: Words, *, is_last: bool) -> dict[str, Any]:
        """`alignment` is null if the checkpoint has no timings or no word is complete."""
        aligned: dict[str, list[Any]] | None = None
        if words or (is_last and words is not None):
            aligned = as_seconds(*self._aligner.take(self._text, words, is_last=is_last))
        encoded = as_base64(audio)
        return {"audio_base64": encoded, "alignment": aligned, "normalized_alignment": aligned}


def voice_object(voice: ListedVoice) -> dict[str, Any]:
    labels = {"language": voice.language} if voice.language else {}
    return {
        "voice_id": voice.id,
        "name": voice.id,
        "category": {"audio_sample": "cloned", "prompt": "generated"}.get(voice.kind, "premade"),
        "labels": labels,
        "description": None,
        "preview_url": None,
        "available_for_tiers": [],
        "settings": None,
    }
