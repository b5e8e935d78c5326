"""`POST /v1/audio/voices` and `DELETE`: voices made of a recording or of a description.

A recording is uploaded as bytes or as base64 and decoded in the sandboxed child; URLs and paths
are never followed.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass, replace
from typing import Any

from fastapi import APIRouter
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vivace.errors import AudioError, RequestError, UnknownVoiceError
from vivace.serve.context import ServeContext
from vivace.serve.errors import RefusedError
from vivace.serve.lists import find_voices, no_such_voice
from vivace.serve.model import Model
from vivace.serve.recording import decode_audio
from vivace.serve.settings import ServeSettings
from vivace.serve.strict_json import check_text, read_json
from vivace.serve.voices import (
    MAX_DESCRIPTION_CHARS,
    OPENAI_NAMES,
    SPEAKERS,
    Listed,
    write_description,
)
from vivace.voices.voice import MAX_NOTE, check_voice_name

MAX_FIELDS = 16
MAX_FIELD_BYTES = 64 * 1024
SAMPLE_TEXT = "Hello, this is how I sound. I hope you like this voice: I will keep it from now on."
SAMPLE_FRAMES = 150  # 12 s, twice what the text takes
SAMPLE_TRIES = 3
BODY = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "description": "of a-z 0-9 _ . -, at most 64"},
        "type": {"type": "string", "enum": ["audio_sample", "prompt"]},
        "audio_sample": {"type": "string", "description": "the recording; in JSON as base64"},
        "transcript": {"type": "string", "description": "every word of the recording"},
        "prompt": {"type": "string", "description": "of a voice to design"},
        "language": {"type": "string"},
        "model": {"type": "string"},
        "consent": {"type": "string", "description": "kept with the voice"},
    },
}
DOCUMENTED = {
    "requestBody": {
        "required": True,
        "content": {kind: {"schema": BODY} for kind in ("application/json", "multipart/form-data")},
    }
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A voice to be made, as it was asked for."""

    name: str
    model: str | None
    audio: bytes | None
    transcript: str | None
    prompt: str | None
    language: str | None
    consent: str | None


def routes(context: ServeContext) -> APIRouter:
    router = APIRouter(tags=["voices"])
    lock = asyncio.Lock()  # enrolments one after another: they share the GPU with speech

    @router.post("/v1/audio/voices", openapi_extra=DOCUMENTED)
    async def create_voice(request: Request) -> Response:
        """Make a voice of a recording (`audio_sample`) or of a description (`prompt`)."""
        context.streams.check_open()
        wanted = read_wanted(await _read_fields(request, context.settings), context.settings)
        async with lock:
            await _check_room(context, wanted.name)
            make = _clone if wanted.audio is not None else _design
            made = await make(context, wanted)
            return JSONResponse(replace(made, created=int(time.time())).as_json())

    @router.delete("/v1/audio/voices/{voice_id}")
    async def delete_voice(voice_id: str) -> Response:
        """Delete a voice that was made; a model's own cannot be."""
        listed = await asyncio.to_thread(find_voices, context)
        found = next((voice for voice in listed if voice.id.lower() == voice_id.lower()), None)
        voices = context.models.voices(found.model if found else context.models.default)
        known = [voice.id for voice in listed if voice.kind != "preset"]
        try:
            if voices is None or found is None:
                raise UnknownVoiceError(voice_id[:200], known)
            await asyncio.to_thread(voices.delete, found.id)
        except UnknownVoiceError as error:
            raise no_such_voice(voice_id, known) from error
        return JSONResponse({"id": found.id, "object": "audio.voice.deleted", "deleted": True})

    return router


# -- what is asked for -----------------------------------------------------------------------


async def _read_fields(request: Request, settings: ServeSettings) -> dict[str, Any]:
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "multipart/form-data":
        return await read_json(request)
    try:
        form = await request.form(
            max_files=2, max_fields=MAX_FIELDS, max_part_size=settings.max_body_bytes
        )
    except MultiPartException as error:
        raise RefusedError(f"the form cannot be read: {error.message}") from error
    except Exception as error:  # Starlette's own, which is an HTTPException where it can be
        if isinstance(error, RequestError):
            raise
        raise RefusedError(f"the form cannot be read: {_detail(error)}") from error
    fields: dict[str, Any] = {}
    try:
        for name, value in form.multi_items():
            if name in fields:
                raise RefusedError(f"the field {name[:80]!r} comes twice", param=name[:80])
            if isinstance(value, UploadFile):
                fields[name] = await value.read(settings.max_audio_bytes + 1)
            elif len(value) > MAX_FIELD_BYTES and name not in ("audio_sample", "ref_audio"):
                raise RefusedError(f"the field {name[:80]!r} is too long", param=name[:80])
            else:
                check_text(value, name[:80])
                fields[name] = value
    finally:
        await form.close()
    return fields


def _detail(error: Exception) -> str:
    return str(getattr(error, "detail", "") or type(error).__name__)


def read_wanted(fields: dict[str, Any], settings: ServeSettings) -> Wanted:
    """The fields in OpenAI's names and in vLLM-Omni's; a RefusedError says which is wrong."""
    audio = _first(fields, "audio_sample", "ref_audio", "audio", "file")
    prompt = _text(fields, "prompt", "description")
    kind = _text(fields, "type") or ("prompt" if audio is None and prompt else "audio_sample")
    if kind not in ("audio_sample", "prompt"):
        raise RefusedError(f"type is audio_sample or prompt, not {kind[:80]!r}", param="type")
    if kind == "prompt" and not (prompt or "").strip():
        raise RefusedError("prompt, the description of the voice, is missing", param="prompt")
    if kind == "audio_sample" and audio is None:
        raise RefusedError("audio_sample, the recording, is missing", param="audio_sample")
    if len(prompt or "") > MAX_DESCRIPTION_CHARS:
        raise RefusedError(
            f"prompt has {len(prompt or ''):,} characters and may have {MAX_DESCRIPTION_CHARS:,}",
            param="prompt",
        )
    recording = None
    if kind == "audio_sample":
        recording = decode_audio(audio, settings.max_audio_bytes, "audio_sample")
    return Wanted(
        name=_check_name(_text(fields, "name")),
        model=_text(fields, "model"),
        audio=recording,
        transcript=(_text(fields, "transcript", "ref_text") or "").strip() or None,
        prompt=prompt if kind == "prompt" else None,
        language=_text(fields, "language"),
        consent=(_text(fields, "consent") or "")[:MAX_NOTE] or None,
    )


def _check_name(name: str | None) -> str:
    if name is None or not name.strip():
        raise RefusedError("name is missing", param="name")
    key = re.sub(r"\s+", "-", name.strip().lower())
    try:
        check_voice_name(key)
    except RequestError as error:
        raise RefusedError(str(error), param="name", code="invalid_name") from error
    return key


def _first(fields: dict[str, Any], *names: str) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _text(fields: dict[str, Any], *names: str) -> str | None:
    value = _first(fields, *names)
    if value is not None and not isinstance(value, str):
        raise RefusedError(f"{names[0]} is a text, not {type(value).__name__}", param=names[0])
    return value


# -- making it -------------------------------------------------------------------------------


async def _check_room(context: ServeContext, name: str) -> None:
    listed = await asyncio.to_thread(find_voices, context)
    made = [voice for voice in listed if voice.kind != "preset"]
    if name in {voice.id.lower() for voice in listed} or name in (*OPENAI_NAMES, *SPEAKERS):
        raise RefusedError(
            f"there is a voice named {name!r} already; choose another name, or delete it first",
            status=409,
            code="voice_exists",
            param="name",
        )
    if len(made) >= context.settings.max_voices:
        raise RefusedError(
            f"there are {len(made)} voices and no more are kept; delete some",
            status=403,
            code="too_many_voices",
        )


async def _clone(context: ServeContext, wanted: Wanted) -> Listed:
    assert wanted.audio is not None
    model = await context.models.get(wanted.model, model_type="base")
    with context.models.in_use(model):
        await asyncio.to_thread(_enrol, model, wanted.audio, wanted, wanted.transcript)
    return Listed(wanted.name, "audio_sample", model.name, wanted.language)


def _enrol(model: Model, audio: Any, wanted: Wanted, transcript: str | None) -> None:
    try:
        voice = model.tts.clone(
            audio,
            transcript,
            name=wanted.name,
            language=wanted.language,
            licence=wanted.consent,
        )
    except AudioError as error:
        raise RefusedError(str(error), param="audio_sample", code="invalid_audio") from error
    model.voices.library.add(voice)


async def _design(context: ServeContext, wanted: Wanted) -> Listed:
    """With a Base model beside, a voice that stays the same; else the description is kept."""
    assert wanted.prompt is not None
    designer = await context.models.get(wanted.model, model_type="voice_design")
    if not designer.card.can_design:
        raise RefusedError(
            f"{designer.card.refusals['design']}, such as Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign",
            code="unsupported",
            param="prompt",
        )
    bases = [card for card in context.models.cards() if card.can_clone]
    speaker = designer
    if bases:
        base = await context.models.get(bases[0].name)
        with context.models.in_use(designer), context.models.in_use(base):
            if await asyncio.to_thread(_speak_and_enrol, designer, base, wanted):
                speaker = base
    words = (wanted.name, wanted.prompt, wanted.language)
    await asyncio.to_thread(write_description, designer.voices.library, *words)
    return Listed(wanted.name, "prompt", speaker.name, wanted.language, prompt=wanted.prompt)


def _speak_and_enrol(designer: Model, base: Model, wanted: Wanted) -> bool:
    """False if no sample could be cloned: all too short, or silent."""
    for _ in range(SAMPLE_TRIES):
        sample = designer.tts.speak(
            SAMPLE_TEXT,
            instruct=wanted.prompt,
            language="english" if "english" in designer.card.languages else "auto",
            max_frames=SAMPLE_FRAMES,
        )
        # A sample that was cut does not say its text, so it serves as a speaker vector alone.
        transcript = SAMPLE_TEXT if sample.finish_reason == "stop" else None
        try:
            _enrol(base, sample, wanted, transcript)
            return True
        except RefusedError as error:
            if error.code != "invalid_audio":
                raise
    return False
