"""`POST /v1/audio/speech`, compatible with OpenAI, and speech as an HTTP body for all routes."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from vivace.serve import sse
from vivace.serve.admission import SPEECH_PATH
from vivace.serve.context import ServeContext
from vivace.serve.errors import Failure, RefusedError, describe
from vivace.serve.request import SpeechRequest
from vivace.serve.response import LiveResponse, ResponseSink
from vivace.serve.schema import SPEECH_FORMATS, audio_response, request_body
from vivace.serve.speak import SpeechReport, SpeechSink, Words, speak
from vivace.serve.strict_json import read_json

log = logging.getLogger(__name__)

UNBUFFERED = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # by proxies
IGNORED = "x-vivace-ignored"  # request fields that the model cannot follow
SKIPPED = "x-vivace-skipped"  # characters of the text that the model does not read
MAX_SKIPPED_CHARS = 32  # different characters in the header
COMPLETENESS = "x-vivace-completeness"  # share of words spoken, of speech that is sent whole
MISSING_WORDS = "x-vivace-missing-words"  # their number
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
ANSWERS: dict[int | str, dict[str, Any]] = {
    200: audio_response(
        "Audio in `response_format` while it is made, or events.",
        SPEECH_FORMATS,
        **{"text/event-stream": EVENTS},
    )
}


def routes(context: ServeContext) -> APIRouter:
    router = APIRouter()
    if missing := context.encoders.warm_up():
        log.warning("audio formats that are not installed: %s", ", ".join(missing))

    @router.post(
        SPEECH_PATH,
        response_class=Response,
        responses=ANSWERS,
        openapi_extra=request_body(SpeechRequest),
    )
    async def create_speech(http: Request) -> Response:
        """Speak a text; the audio is sent while it is made."""
        request = SpeechRequest.parse(await read_json(http), context.settings)
        if request.stream_format == "sse":
            return speech_response(context, request, EventBody(request))
        if request.word_timestamps:
            raise RefusedError(
                "word_timestamps are sent as events; add stream_format 'sse'",
                param="word_timestamps",
            )
        return speech_response(context, request)

    return router


def speech_response(
    context: ServeContext,
    request: SpeechRequest,
    body: SpeechBody | None = None,
    *,
    ignored: Sequence[str] = (),
) -> Response:
    """The response to a request: audio, unless another format is given.

    `ignored` names fields of the client's protocol that Vivace does not support.
    """

    async def answer(response: ResponseSink) -> None:
        await speak(context, request, HttpSink(request, response, body or SpeechBody(), ignored))

    return LiveResponse(answer)


class HttpSink(SpeechSink):
    """Writes one speech as an HTTP response.

    The status is sent with the first audio, so that an earlier error has its own status. A later
    error leaves the body incomplete, so that no client mistakes a part for the whole.
    """

    def __init__(
        self,
        request: SpeechRequest,
        response: ResponseSink,
        body: SpeechBody,
        ignored: Sequence[str] = (),
    ) -> None:
        self._is_whole = not request.stream
        self._response, self._body, self._ignored = response, body, ignored

    @property
    def is_whole(self) -> bool:
        return self._is_whole

    async def start(self, report: SpeechReport) -> None:
        if not self.is_whole:
            await self._response.start(self._headers(report))

    async def write(self, audio: bytes, words: Words) -> None:
        await self._response.write(self._body.write(audio, words))

    async def finish(self, audio: bytes, words: Words, report: SpeechReport) -> None:
        content = await self._body.finish(audio, words, report)
        if self.is_whole:
            length = {"content-length": str(len(content))}
            headers = {**self._headers(report), **completeness_headers(report), **length}
            await self._response.start(headers)
        await self._response.end(content)

    async def fail(self, error: Exception) -> None:
        if not self._response.is_started:
            raise error  # `app.py` makes it a response
        failure = describe(error)
        log.warning(  # the message of a client error may quote the text
            "speech failed after its first audio: %s",
            failure.message if failure.status >= 500 else failure.code,
        )
        await self._response.write(self._body.fail(failure))
        self._response.abort()

    def _headers(self, report: SpeechReport) -> dict[str, str]:
        ignored = ", ".join([*self._ignored, *report.ignored])
        return {
            "content-type": self._body.content_type or report.encoder.content_type,
            **UNBUFFERED,
            **({IGNORED: ignored} if ignored else {}),
            **skipped_header(report.skipped),
        }


def skipped_header(skipped: Sequence[str]) -> dict[str, str]:
    """The number of skipped characters and the characters, percent-encoded: `5; %D0%9C`."""
    if not skipped:
        return {}
    characters = "".join(dict.fromkeys("".join(skipped)))[:MAX_SKIPPED_CHARS]
    return {SKIPPED: f"{sum(map(len, skipped))}; {quote(characters)}"}


def completeness_headers(report: SpeechReport) -> dict[str, str]:
    fields = report.usage_fields
    if "completeness" not in fields:
        return {}
    return {
        COMPLETENESS: f"{fields['completeness']:g}",
        MISSING_WORDS: str(len(fields["missing_words"])),
    }


# -- formats of bodies -----------------------------------------------------------------------


class SpeechBody:
    """The bytes of a body: the audio itself. Subclasses wrap it."""

    content_type: str | None = None  # None: that of the audio

    def write(self, audio: bytes, words: Words) -> bytes:
        return audio

    async def finish(self, audio: bytes, words: Words, report: SpeechReport) -> bytes:
        return audio

    def fail(self, failure: Failure) -> bytes:
        return b""


class JsonLines(SpeechBody):
    """A JSON object on a line for every piece of audio."""

    content_type = "application/json"

    def as_json(self, audio: bytes, words: Words, *, is_last: bool) -> dict[str, Any]:
        raise NotImplementedError

    def write(self, audio: bytes, words: Words) -> bytes:
        return self._line(audio, words) if audio or words else b""

    async def finish(self, audio: bytes, words: Words, report: SpeechReport) -> bytes:
        return self._line(audio, words, is_last=True)

    def _line(self, audio: bytes, words: Words, *, is_last: bool = False) -> bytes:
        return json.dumps(self.as_json(audio, words, is_last=is_last)).encode("ascii") + b"\n"


class EventBody(SpeechBody):
    """OpenAI's server-sent events, with `speech.audio.words` if the request wants timestamps."""

    content_type = sse.CONTENT_TYPE

    def __init__(self, request: SpeechRequest) -> None:
        self._text, self._has_words = request.input, request.word_timestamps

    def write(self, audio: bytes, words: Words) -> bytes:
        delta = sse.delta(audio) if audio else b""
        return delta + sse.words(words) if self._has_words and words else delta

    async def finish(self, audio: bytes, words: Words, report: SpeechReport) -> bytes:
        tokenizer = report.model.tts.tokenizer  # in a thread: the text may be a whole chapter
        num_tokens = len(await asyncio.to_thread(tokenizer.encode, self._text))
        content = sse.delta(audio) if audio else b""
        if self._has_words:
            content += sse.words(words)
        return content + sse.done(num_tokens, report.num_frames, report.reason, report.usage_fields)

    def fail(self, failure: Failure) -> bytes:
        return sse.error(failure)
