"""Routes compatible with ElevenLabs: text to speech and the list of voices.

A request becomes one of `POST /v1/audio/speech`. Fields that Qwen3-TTS does not support
(`stability`, `similarity_boost`, `style`, previous and next text) are ignored.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vivace.serve.alignment import Aligner, as_seconds
from vivace.serve.context import ServeContext
from vivace.serve.errors import RefusedError
from vivace.serve.lists import find_voices
from vivace.serve.request import SpeechRequest
from vivace.serve.schema import audio_response, json_response
from vivace.serve.speak import Words
from vivace.serve.speech import JsonLines, speech_response
from vivace.serve.strict_json import read_json
from vivace.serve.voices import ListedVoice

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
ALIGNMENT = {
    "type": ["object", "null"],
    "properties": {
        "characters": {"type": "array", "items": {"type": "string"}},
        "character_start_times_seconds": {"type": "array", "items": {"type": "number"}},
        "character_end_times_seconds": {"type": "array", "items": {"type": "number"}},
    },
}
TIMED_SPEECH = {
    "type": "object",
    "properties": {
        "audio_base64": {"type": "string", "contentEncoding": "base64"},
        "alignment": ALIGNMENT,
        "normalized_alignment": ALIGNMENT,
    },
}
BODY = {
    "type": "object",
    "required": ["text"],
    "properties": {
        "text": {"type": "string", "description": "The text to speak."},
        "model_id": {"type": "string"},
        "language_code": {"type": "string"},
        "seed": {"type": "integer"},
        "voice_settings": {"type": "object", "properties": {"speed": {"type": "number"}}},
    },
}
OUTPUT_FORMAT = {
    "name": "output_format",
    "in": "query",
    "schema": {"type": "string", "enum": list(OUTPUTS), "default": DEFAULT_OUTPUT},
}
REQUEST = {
    "parameters": [OUTPUT_FORMAT],
    "requestBody": {"required": True, "content": {"application/json": {"schema": BODY}}},
}
AUDIO_FORMATS = tuple(dict.fromkeys(name for name, *_ in OUTPUTS.values()))
AUDIO_ROUTE: dict[str, Any] = {
    "response_class": Response,
    "responses": {200: audio_response("Audio in `output_format`.", AUDIO_FORMATS)},
    "openapi_extra": REQUEST,
}
TIMED_ROUTE: dict[str, Any] = {
    "response_class": Response,
    "responses": {
        200: json_response("Audio and its alignment, one object per line.", TIMED_SPEECH)
    },
    "openapi_extra": REQUEST,
}


def routes(context: ServeContext) -> APIRouter:
    router = APIRouter()

    async def answer(
        http: Request, voice_id: str, *, is_stream: bool, is_timed: bool = False
    ) -> Response:
        context.streams.check_open()
        context.admission.check()
        fields = await read_json(http)
        text = fields.get("text")
        if not isinstance(text, str):
            raise RefusedError("text must be a string", param="text", code="missing_field")
        fields = {**speech_fields(voice_id, http.query_params, fields), "input": text}
        fields |= {"stream": is_stream, "word_timestamps": is_timed}
        request = SpeechRequest.parse(fields, context.settings)
        body = TimedSpeech(text) if is_timed else None
        return speech_response(context, request, body)

    @router.post("/v1/text-to-speech/{voice_id}", **AUDIO_ROUTE)
    async def convert(http: Request, voice_id: str) -> Response:
        """The complete speech."""
        return await answer(http, voice_id, is_stream=False)

    @router.post("/v1/text-to-speech/{voice_id}/with-timestamps", **TIMED_ROUTE)
    async def convert_timed(http: Request, voice_id: str) -> Response:
        """The complete speech in JSON, with the time of every character."""
        return await answer(http, voice_id, is_stream=False, is_timed=True)

    @router.post("/v1/text-to-speech/{voice_id}/stream", **AUDIO_ROUTE)
    async def stream(http: Request, voice_id: str) -> Response:
        """The speech as a stream."""
        return await answer(http, voice_id, is_stream=True)

    @router.post("/v1/text-to-speech/{voice_id}/stream/with-timestamps", **TIMED_ROUTE)
    async def stream_timed(http: Request, voice_id: str) -> Response:
        """The speech as a stream of JSON lines, with the time of every character."""
        return await answer(http, voice_id, is_stream=True, is_timed=True)

    @router.get("/v1/voices")
    async def voices() -> Response:
        listed = await asyncio.to_thread(find_voices, context)
        return JSONResponse({"voices": [voice_object(voice) for voice in listed]})

    @router.get("/v2/voices")
    async def search_voices(http: Request) -> Response:
        """All voices as one page. `?search=` filters by name."""
        wanted = http.query_params.get("search", "").lower()
        listed = await asyncio.to_thread(find_voices, context)
        found = [voice_object(voice) for voice in listed if wanted in voice.id.lower()]
        page = {"has_more": False, "total_count": len(found), "next_page_token": None}
        return JSONResponse({"voices": found, **page})

    @router.get("/v1/voices/{voice_id}")
    async def voice(voice_id: str) -> Response:
        for listed in await asyncio.to_thread(find_voices, context):
            if listed.id == voice_id:
                return JSONResponse(voice_object(listed))
        raise RefusedError(
            f"no voice named {voice_id[:200]!r}; see GET /v1/voices",
            status=404,
            code="voice_not_found",
        )

    return router


def speech_fields(
    voice_id: str, query: Mapping[str, str], message: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields of a `SpeechRequest` except its text."""
    name = query.get("output_format") or DEFAULT_OUTPUT
    if name not in OUTPUTS:
        raise RefusedError(
            f"output_format {name[:80]!r} is not supported; try one of: {', '.join(OUTPUTS)}",
            param="output_format",
            code="invalid_output_format",
        )
    format, rate, bit_rate = OUTPUTS[name]
    settings = message.get("voice_settings")
    if not (settings is None or isinstance(settings, dict)):
        raise RefusedError("voice_settings must be an object", param="voice_settings")
    fields = {
        "voice": voice_id,
        "model": message.get("model_id") or query.get("model_id"),
        "language": message.get("language_code") or query.get("language_code"),
        "speed": (settings or {}).get("speed"),
        "seed": read_seed(message.get("seed", query.get("seed"))),
        "response_format": format,
        "sample_rate": rate,
        "bit_rate": bit_rate,
    }
    return {name: value for name, value in fields.items() if value is not None}


class TimedSpeech(JsonLines):
    """Formats pieces of a speech as JSON with the times of the characters of `text`."""

    def __init__(self, text: str) -> None:
        self._text, self._aligner = text, Aligner()

    def as_json(self, audio: bytes, words: Words, *, is_last: bool) -> dict[str, Any]:
        """`alignment` is null if the checkpoint has no timings or no word is complete."""
        aligned: dict[str, list[Any]] | None = None
        if words or (is_last and words is not None):
            aligned = as_seconds(*self._aligner.take(self._text, words, is_last=is_last))
        encoded = base64.b64encode(audio).decode("ascii")
        return {"audio_base64": encoded, "alignment": aligned, "normalized_alignment": aligned}


def read_seed(seed: object) -> object:
    """A seed in a query is text; other values are left to the check of SpeechRequest."""
    return int(seed) if isinstance(seed, str) and seed.isdecimal() and len(seed) < 20 else seed


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
