"""`POST /v1/audio/encode`: PCM to another audio format. The page's downloads use it.

Received speech can be saved in any format without another speech request. The samples are those of
the client, so the server cannot know whether they are speech of its own. A client that sends the
header `x-vivace-provenance` of the speech gets a file that says the same. It is not signed.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from vivace.audio.file_mark import FileMark, Provenance
from vivace.audio.formats import SPEECH_FORMATS, SpeechFormat
from vivace.errors import AudioError
from vivace.serve.context import ServeContext
from vivace.serve.errors import RefusedError
from vivace.serve.http.response import PROVENANCE
from vivace.serve.routes.openapi import BINARY, audio_response
from vivace.serve.speaking.request import SampleRate
from vivace.serve.streams.encoders import SpeechEncoder

PCM = {"requestBody": {"required": True, "content": {"audio/pcm": BINARY}}}
ANSWERS: dict[int | str, dict[str, Any]] = {200: audio_response("The audio.", SPEECH_FORMATS)}
QueryRate = Annotated[SampleRate, Query(description="Of the samples, in Hz.")]

SpeechProvenance = Annotated[
    str | None,
    Header(alias=PROVENANCE, description="Of the response whose audio this is. The file says it."),
]


def routes(context: ServeContext) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/audio/encode", response_class=Response, responses=ANSWERS, openapi_extra=PCM)
    async def encode(
        http: Request,
        response_format: SpeechFormat = "mp3",
        sample_rate: QueryRate = 24_000,
        provenance: SpeechProvenance = None,
    ) -> Response:
        """Convert mono PCM (16 bit, little endian) to another format."""
        body = await http.body()
        if not body or len(body) % 2:
            raise RefusedError(
                f"the body has {len(body):,} bytes; send 16-bit PCM samples", code="invalid_audio"
            )
        try:
            encoder = SpeechEncoder(context.encoding_threads, response_format, sample_rate)
        except AudioError as error:
            raise RefusedError(
                str(error), param="response_format", code="unsupported_format"
            ) from error
        headers = {"content-type": encoder.content_type}
        if provenance is not None:
            mark = _read_mark(provenance)
            encoder.set_mark(mark)
            headers[PROVENANCE] = mark.provenance.header
        samples = np.frombuffer(body, "<i2").astype(np.float32) / np.float32(32_768)
        content = await encoder.encode_whole([samples])
        return Response(content, headers=headers)

    return router


def _read_mark(provenance: str) -> FileMark:
    try:
        return FileMark(Provenance.parse_header(provenance))
    except AudioError as error:
        raise RefusedError(str(error), param=PROVENANCE, code="invalid_provenance") from error
