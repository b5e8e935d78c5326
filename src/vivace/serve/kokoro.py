"""`POST /dev/captioned_speech`, Kokoro-FastAPI's: audio with the times of its words, as JSON.

The request becomes one of `POST /v1/audio/speech`. Streamed, each line of the response is an
object; whole, there is one. `audio` is base64, and `timestamps` are seconds of the whole audio.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from vivace.audio.formats import FORMATS
from vivace.serve.context import ServeContext
from vivace.serve.errors import RefusedError
from vivace.serve.request import SpeechRequest
from vivace.serve.schema import json_response, request_body
from vivace.serve.speech import JsonLines, speech_response
from vivace.serve.strict_json import read_json
from vivace.speech import Word

LANGUAGES = {
    "a": "english", "b": "english", "e": "spanish", "f": "french", "h": "hindi",
    "i": "italian", "j": "japanese", "p": "portuguese", "z": "chinese",
}  # fmt: skip
# Fields without a counterpart, and the values that ask for nothing.
UNSUPPORTED: dict[str, tuple[object, ...]] = {
    "volume_multiplier": (None, 1, 1.0),
    "normalization_options": (None, {}),
    "return_download_link": (None, False),
    "download_format": (None,),
}
KOKORO_FIELDS = {
    "return_timestamps": {"type": "boolean", "default": True, "description": "Send `timestamps`."},
    "lang_code": {"type": "string", "description": "Kokoro's letter, `a` or `b` for English."},
}
SETTLED = ("stream_format", "word_timestamps")  # by the endpoint
TIMESTAMP = {
    "type": "object",
    "properties": {
        "word": {"type": "string"},
        "start_time": {"type": "number", "description": "In seconds."},
        "end_time": {"type": "number", "description": "In seconds."},
    },
}
CAPTIONED = {
    "type": "object",
    "properties": {
        "audio": {"type": "string", "contentEncoding": "base64"},
        "audio_format": {"type": "string", "description": "The content type of `audio`."},
        "timestamps": {"type": ["array", "null"], "items": TIMESTAMP},
    },
}


def routes(context: ServeContext) -> APIRouter:
    router = APIRouter()

    @router.post(
        "/dev/captioned_speech",
        response_class=Response,
        responses={200: json_response("Objects of audio and words, one a line.", CAPTIONED)},
        openapi_extra=request_body(SpeechRequest, KOKORO_FIELDS, without=SETTLED),
    )
    async def create_captioned_speech(http: Request) -> Response:
        """Speak a text and say when each word is heard: Kokoro-FastAPI's endpoint."""
        context.streams.check_open()
        body = await read_json(http)
        request = SpeechRequest.parse(speech_fields(body), context.settings)
        captions = Captions(request.response_format, is_stream=request.stream)
        ignored = [name for name, neutral in UNSUPPORTED.items() if body.get(name) not in neutral]
        return speech_response(context, request, JsonLines(captions), ignored=ignored)

    return router


def speech_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `POST /v1/audio/speech` that ask for the same speech."""
    fields = {**body, "stream_format": "audio", "word_timestamps": True}
    if (is_timed := body.get("return_timestamps")) is not None:
        if not isinstance(is_timed, bool):
            raise RefusedError("return_timestamps is true or false", param="return_timestamps")
        fields["word_timestamps"] = is_timed
    if (code := body.get("lang_code")) is not None:
        if not isinstance(code, str):
            raise RefusedError("lang_code is a string", param="lang_code")
        fields["language"] = LANGUAGES.get(code.strip().lower(), code)
    return fields


class Captions:
    """Pieces of a speech as Kokoro-FastAPI's objects."""

    def __init__(self, response_format: str, *, is_stream: bool) -> None:
        self._content_type, self._is_stream = FORMATS[response_format].content_type, is_stream

    def __call__(
        self, audio: bytes, words: Sequence[Word] | None, is_last: bool
    ) -> dict[str, str | list[dict[str, Any]] | None]:
        """Without timings a streamed object has no timestamps, and a whole one null."""
        rows = None if words is None else [_as_json(word) for word in words]
        return {
            "audio": base64.b64encode(audio).decode("ascii"),
            "audio_format": self._content_type,
            "timestamps": rows or [] if self._is_stream else rows,
        }


def _as_json(word: Word) -> dict[str, Any]:
    return {
        "word": word.text,
        "start_time": round(word.start_s, 3),
        "end_time": round(word.end_s, 3),
    }
