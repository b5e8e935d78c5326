"""`POST /dev/captioned_speech`, compatible with Kokoro-FastAPI: audio and word times as JSON.

The request becomes one of `POST /v1/audio/speech`. A streamed response is one JSON object per line;
a whole response is one object. `audio` is base64; `timestamps` count seconds from the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from vivace.audio.formats import FORMATS
from vivace.serve.context import ServeContext
from vivace.serve.http.bodies import JsonLines, as_base64
from vivace.serve.http.response import SpeechResponse
from vivace.serve.input.strict_json import read_json
from vivace.serve.input.validation import ClientInput
from vivace.serve.routes.openapi import json_response, request_body
from vivace.serve.speaking.request import SpeechRequest
from vivace.serve.speaking.speak import Words
from vivace.speech import Word

LANGUAGES = {
    "a": "english", "b": "english", "e": "spanish", "f": "french", "h": "hindi",
    "i": "italian", "j": "japanese", "p": "portuguese", "z": "chinese",
}  # fmt: skip
# Fields that are not supported, and the values that have no effect.
UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "volume_multiplier": (None, 1, 1.0),
    "normalization_options": (None, {}),
    "return_download_link": (None, False),
    "download_format": (None,),
}
FIXED = ("stream_format", "word_timestamps")  # by the endpoint


class Timestamp(BaseModel):
    word: str
    start_time: float = Field(description="In seconds.")
    end_time: float = Field(description="In seconds.")


class CaptionedSpeech(BaseModel):
    """A line of a response, for the API's description."""

    audio: str = Field(description="In base64.")
    audio_format: str = Field(description="The content type of `audio`.")
    timestamps: list[Timestamp] | None


class KokoroFields(ClientInput):
    return_timestamps: bool = Field(True, description="Send `timestamps`.")
    lang_code: str | None = Field(None, description="Kokoro's letter, `a` or `b` for English.")


def routes(context: ServeContext) -> APIRouter:
    router = APIRouter()

    @router.post(
        "/dev/captioned_speech",
        response_class=Response,
        responses={200: json_response("Audio and words, one object per line.", CaptionedSpeech)},
        openapi_extra=request_body(SpeechRequest, KokoroFields, without=FIXED),
    )
    async def create_captioned_speech(http: Request) -> Response:
        """Speak a text and send the time of each word: Kokoro-FastAPI's endpoint."""
        context.streams.check_open()
        body = await read_json(http)
        names = {"language": "lang_code"} if body.get("lang_code") is not None else {}
        request = SpeechRequest.read(speech_fields(body), context.settings, names)
        captions = Captions(request.response_format, is_stream=request.stream)
        ignored = [name for name, neutral in UNSUPPORTED.items() if body.get(name) not in neutral]
        return SpeechResponse(context, request, captions, ignored=ignored)

    return router


def speech_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """The same request as fields of `POST /v1/audio/speech`."""
    own = KokoroFields.read(body)
    fields = {**body, "stream_format": "audio", "word_timestamps": own.return_timestamps}
    if own.lang_code is not None:
        fields["language"] = LANGUAGES.get(own.lang_code.strip().lower(), own.lang_code)
    return fields


class Captions(JsonLines):
    """Formats pieces of a speech as Kokoro-FastAPI's objects."""

    def __init__(self, response_format: str, *, is_stream: bool) -> None:
        self._content_type, self._is_stream = FORMATS[response_format].content_type, is_stream

    def as_json(self, audio: bytes, words: Words, *, is_last: bool) -> dict[str, Any]:
        """Without timings, `timestamps` is empty in a stream and null in a whole response."""
        rows = None if words is None else [_as_json(word) for word in words]
        return {
            "audio": as_base64(audio),
            "audio_format": self._content_type,
            "timestamps": rows or [] if self._is_stream else rows,
        }


def _as_json(word: Word) -> dict[str, Any]:
    return {
        "word": word.text,
        "start_time": round(word.start_s, 3),
        "end_time": round(word.end_s, 3),
    }
