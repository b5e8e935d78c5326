"""`POST /v1/audio/speech`, compatible with OpenAI."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from vivace.audio.formats import SPEECH_FORMATS
from vivace.serve.context import ServeContext
from vivace.serve.errors import RefusedError
from vivace.serve.http.bodies import EventBody
from vivace.serve.http.response import SpeechResponse
from vivace.serve.input.strict_json import read_json
from vivace.serve.routes.openapi import audio_response, request_body
from vivace.serve.speaking.request import SpeechRequest
from vivace.serve.streams.admission import SPEECH_PATH
from vivace.serve.streams.encoders import missing_formats

log = logging.getLogger(__name__)

EVENTS = {
    "schema": {
        "type": "string",
        "description": "With `stream_format: sse`: `speech.audio.delta` events with base64 "
        "`audio`, with `word_timestamps` also `speech.audio.words`, then `speech.audio.done` with "
        "`usage`, or `speech.audio.error`.",
    },
    "example": "event: speech.audio.delta\n"
    'data: {"type": "speech.audio.delta", "audio": "SUQz"}\n\n',
}
RESPONSES: dict[int | str, dict[str, Any]] = {
    200: audio_response(
        "Audio in `response_format` while it is made, or events.",
        SPEECH_FORMATS,
        **{"text/event-stream": EVENTS},
    )
}


def routes(context: ServeContext) -> APIRouter:
    router = APIRouter()
    if missing := missing_formats():
        log.warning("audio formats that are not installed: %s", ", ".join(missing))

    @router.post(
        SPEECH_PATH,
        response_class=Response,
        responses=RESPONSES,
        openapi_extra=request_body(SpeechRequest),
    )
    async def create_speech(http: Request) -> Response:
        """Speak a text; the audio is sent while it is made."""
        request = SpeechRequest.read(await read_json(http), context.settings)
        if request.stream_format == "sse":
            return SpeechResponse(context, request, EventBody(request))
        if request.word_timestamps:
            raise RefusedError(
                "word_timestamps are sent as events; add stream_format 'sse'",
                param="word_timestamps",
            )
        return SpeechResponse(context, request)

    return router
