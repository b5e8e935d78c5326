"""`POST /v1/audio/speech`, OpenAI's: text in, audio out while it is made."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

import numpy as np
from fastapi import APIRouter
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from vivace.audio.clip import AudioChunk
from vivace.errors import AudioError, EngineError, RequestError, RunawayError
from vivace.serve import sse
from vivace.serve.admission import SPEECH_PATH
from vivace.serve.bodies import read_json
from vivace.serve.body import Outlet, WhileConnected
from vivace.serve.clones import Clones
from vivace.serve.context import ServeContext
from vivace.serve.encoders import SpeechEncoder
from vivace.serve.errors import RefusedError, describe
from vivace.serve.model import Model
from vivace.serve.request import SpeechRequest
from vivace.serve.schema import SPEECH_FORMATS, audio_response, request_body
from vivace.speech import Usage, Word
from vivace.voices.voice import Voice

log = logging.getLogger(__name__)

UNBUFFERED = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # by proxies
IGNORED = "x-vivace-ignored"  # names fields that the model cannot follow
SKIPPED = "x-vivace-skipped"  # characters of the text that the model does not read
MAX_SKIPPED_CHARS = 32  # different characters that the header names
COMPLETENESS = "x-vivace-completeness"  # of speech that is sent whole: share of words spoken
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

AsJson = Callable[[bytes, tuple[Word, ...] | None, bool], dict[str, Any]]
"""An object of some audio, its words, and whether it is the last."""
OpenSpeech = Callable[[], AbstractAsyncContextManager[AsyncIterator[AudioChunk]]]


def routes(context: ServeContext) -> APIRouter:
    router = APIRouter()
    if missing := context.encoders.warm_up():
        log.warning("cannot be written here: %s", ", ".join(missing))

    @router.post(
        SPEECH_PATH,
        response_class=Response,
        responses=ANSWERS,
        openapi_extra=request_body(SpeechRequest),
    )
    async def create_speech(http: Request) -> Response:
        """Speak a text; the audio is sent while it is made."""
        request = SpeechRequest.parse(await read_json(http), context.settings)
        if request.word_timestamps and request.stream_format != "sse":
            raise RefusedError(
                "word_timestamps come as events: send stream_format 'sse'", param="word_timestamps"
            )
        return await answer_speech(context, request)

    return router


async def answer_speech(
    context: ServeContext,
    request: SpeechRequest,
    *,
    as_json: AsJson | None = None,
    ignored: Sequence[str] = (),
) -> Response:
    """The answer to a request that was read; `as_json` makes objects of it, a line each.

    `ignored` names fields of the client's protocol that have no counterpart here.
    """

    async def answer(outlet: Outlet) -> None:
        model = await context.models.get(
            request.model, voice=request.voice_name, model_type=request.model_type
        )
        with context.admission.admit(model) as place:
            recording = request.recording(context.settings)
            request.check_task(model.card)
            encoder = open_encoder(context, model, request)
            with context.models.in_use(model):
                options, unfit = await choose_options(context.clones, model, request, recording)
            options |= {"place": place}
            speech = SpeechAnswer(
                request,
                encoder,
                open_speech=partial(context.streams.open, model, request.input, **options),
                count_tokens=lambda: len(model.tts.tokenizer.encode(request.input)),
                headers={IGNORED: ", ".join([*ignored, *unfit])} if ignored or unfit else {},
                as_json=as_json,
            )
            await speech.send(outlet)

    return WhileConnected(answer)


def open_encoder(context: ServeContext, model: Model, request: SpeechRequest) -> SpeechEncoder:
    try:
        return context.encoders.open_for(request, model.card.sample_rate)
    except AudioError as error:
        param = "response_format" if request.sample_rate is None else "sample_rate"
        raise RefusedError(str(error), param=param, code="unsupported_format") from error


async def choose_options(
    clones: Clones, model: Model, request: SpeechRequest, recording: bytes | None
) -> tuple[dict[str, Any], list[str]]:
    """Options of `TTS.astream`, and the fields that this model cannot follow."""
    ignored = []
    instructions = request.instructions
    if instructions and not model.card.follows_instruct:
        instructions = None  # as OpenAI's tts-1 does; many clients always send some
        ignored.append("instructions")
    if recording is not None:
        transcript = None if request.x_vector_only_mode else request.ref_text or None
        try:
            voice = await clones.get(model, recording, transcript)
        except AudioError as error:
            raise RefusedError(str(error), param="ref_audio", code="invalid_audio") from error
        chosen: dict[str, Any] = {"voice": voice, "instruct": instructions}
    elif request.speaker_embedding:
        chosen = {"voice": read_embedding(request.speaker_embedding), "instruct": instructions}
    else:
        choose = partial(model.voices.choose, request.voice_name)
        found = await asyncio.to_thread(choose) if model.voices.is_on_disk else choose()
        chosen = found.options(instructions)
    return {**request.options(), **chosen}, ignored


def read_embedding(values: Sequence[float]) -> Voice:
    try:
        return Voice(name="embedding", speaker=np.asarray(values, np.float64))
    except RequestError as error:
        raise RefusedError(f"speaker_embedding: {error}", param="speaker_embedding") from error


def skipped_header(skipped: Sequence[str]) -> dict[str, str]:
    """How many characters were left out of the text, and which, percent-encoded: `5; %D0%9C`."""
    if not skipped:
        return {}
    characters = "".join(dict.fromkeys("".join(skipped)))[:MAX_SKIPPED_CHARS]
    return {SKIPPED: f"{sum(map(len, skipped))}; {quote(characters)}"}


@dataclass(slots=True)
class Ending:
    """What is known of a speech when it is over."""

    num_frames: int = 0
    reason: str | None = None
    words: tuple[Word, ...] | None = ()  # None: there are no timings
    audio_s: float = 0.0
    usage: Usage | None = None
    skipped: tuple[str, ...] = ()  # parts of the text

    def count(self, chunk: AudioChunk) -> None:
        self.num_frames += len(chunk.codes)
        self.audio_s += len(chunk.samples) / chunk.sample_rate
        none = self.words is None or chunk.words is None
        self.words = None if none else (*(self.words or ()), *(chunk.words or ()))
        self.reason = chunk.finish_reason or self.reason
        self.usage = chunk.usage or self.usage
        self.skipped += chunk.skipped

    @property
    def usage_fields(self) -> dict[str, Any]:
        """JSON fields of the last message: words that were not spoken, letters that were skipped.

        A field is absent if its value is not known; `skipped` also if nothing was skipped.
        """
        fields: dict[str, Any] = {}
        if self.usage is not None and self.usage.completeness is not None:
            fields["completeness"] = round(self.usage.completeness, 4)
            fields["missing_words"] = list(self.usage.missing_words)
            fields["retries"] = self.usage.retries
        return fields | self.skipped_field

    @property
    def skipped_field(self) -> dict[str, list[str]]:
        """`skipped`: parts of the text that the checkpoint does not read."""
        return {"skipped": list(self.skipped)} if self.skipped else {}

    @property
    def completeness_headers(self) -> dict[str, str]:
        fields = self.usage_fields
        if "completeness" not in fields:
            return {}
        return {
            COMPLETENESS: f"{fields['completeness']:g}",
            MISSING_WORDS: str(len(fields["missing_words"])),
        }

    @property
    def is_complete(self) -> bool:
        return self.reason == "stop"


class SpeechAnswer:
    """Speech while it is made, or whole.

    Its status waits for the first audio, so an error before that is an answer of its own. After
    that the body is broken off, and events say why: no client takes a part for the whole.
    """

    def __init__(
        self,
        request: SpeechRequest,
        encoder: SpeechEncoder,
        *,
        open_speech: OpenSpeech,
        count_tokens: Callable[[], int],
        headers: dict[str, str],
        as_json: AsJson | None = None,
    ) -> None:
        self._as_json = as_json
        self._request, self._encoder = request, encoder
        self._open_speech, self._count_tokens = open_speech, count_tokens
        self._is_sse = request.stream_format == "sse"
        kind = sse.CONTENT_TYPE if self._is_sse else encoder.content_type
        kind = kind if as_json is None else "application/json"
        self._fields = {"content-type": kind, **UNBUFFERED, **headers}

    async def send(self, outlet: Outlet) -> None:
        await (self._send_stream if self._request.stream else self._send_whole)(outlet)

    # -- while it is made ----------------------------------------------------------------------

    async def _send_stream(self, outlet: Outlet) -> None:
        try:
            ending = await self._send_chunks(outlet)
            last = await self._encoder.finish()
            nothing = None if ending.words is None else ()
            await outlet.write(self._wrap(last, nothing, is_last=True))
            await outlet.end(await self._done(ending))
        except Exception as error:
            if not outlet.is_started:
                raise
            failure = describe(error)
            known = failure.message if failure.status >= 500 else failure.code  # no text
            log.warning("a speech broke off: %s", known)
            if self._is_sse:
                await outlet.write(sse.error(failure))
            outlet.abort()

    async def _send_chunks(self, outlet: Outlet) -> Ending:
        ending = Ending()
        async with self._open_speech() as chunks:
            async for chunk in chunks:
                ending.count(chunk)
                content = await self._encode(chunk.samples) if len(chunk.samples) else b""
                if len(chunk.samples) and not outlet.is_started:
                    await outlet.start({**self._fields, **skipped_header(ending.skipped)})
                await outlet.write(self._wrap(content, chunk.words))
                if self._has_word_events and (chunk.words or chunk.is_last):
                    await outlet.write(sse.words(chunk.words))
            if not (ending.is_complete or self._request.is_pinned):
                raise RunawayError(f"the speech did not end by itself ({ending.reason})")
            if not outlet.is_started:
                raise EngineError("the speech has no audio")
        return ending

    async def _encode(self, samples: NDArray[np.float32]) -> bytes:
        try:
            return await self._encoder.encode(samples)
        except AudioError as error:  # of our own audio, not of the request's
            raise EngineError(f"the audio could not be encoded: {error}") from error

    def _wrap(
        self, content: bytes, words: tuple[Word, ...] | None = (), *, is_last: bool = False
    ) -> bytes:
        if self._as_json is not None and (content or words or is_last):
            return json.dumps(self._as_json(content, words, is_last)).encode("ascii") + b"\n"
        return sse.delta(content) if self._is_sse and content else content

    @property
    def _has_word_events(self) -> bool:
        return self._is_sse and self._request.word_timestamps

    async def _done(self, ending: Ending) -> bytes:
        if not self._is_sse:
            return b""
        num_tokens = await asyncio.to_thread(self._count_tokens)  # of perhaps a whole chapter
        return sse.done(num_tokens, ending.num_frames, ending.reason, ending.usage_fields)

    # -- whole -----------------------------------------------------------------------------------

    async def _send_whole(self, outlet: Outlet) -> None:
        chunks, ending = await self._collect()
        content = await self._encoder.encode_whole(chunks)
        content = self._wrap(content, ending.words, is_last=True)
        if self._has_word_events:
            content += sse.words(ending.words)
        content += await self._done(ending)
        length = {"content-length": str(len(content))}
        told = {**ending.completeness_headers, **skipped_header(ending.skipped)}
        await outlet.start({**self._fields, **told, **length})
        await outlet.end(content)

    async def _collect(self) -> tuple[list[NDArray[np.float32]], Ending]:
        """All of it; once more if it did not end by itself."""
        for _ in range(2):
            chunks, ending = [], Ending()
            async with self._open_speech() as stream:
                async for chunk in stream:
                    ending.count(chunk)
                    chunks.append(chunk.samples)
            if ending.is_complete or self._request.is_pinned:
                return chunks, ending
        raise RunawayError(
            f"the speech did not end by itself, twice ({ending.reason}); change the text a little, "
            "or give a seed to get what there is"
        )
