"""`POST /v1/audio/voices` and `DELETE`: voices made from a recording or a description.

A recording is uploaded as bytes or base64 and decoded in a sandboxed process.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import replace
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import AliasChoices, ConfigDict, Field, field_validator
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vivace.errors import AudioError, RequestError, UnknownVoiceError
from vivace.serve.context import ServeContext
from vivace.serve.errors import RefusedError
from vivace.serve.input.recording import decode_audio
from vivace.serve.input.strict_json import check_text, read_json
from vivace.serve.input.validation import ClientInput
from vivace.serve.models.served_model import ServedModel
from vivace.serve.models.voices import (
    MAX_DESCRIPTION_CHARS,
    OPENAI_NAMES,
    SPEAKERS,
    ListedVoice,
    write_description,
)
from vivace.serve.routes.lists import find_voices, no_such_voice
from vivace.serve.routes.openapi import request_body
from vivace.serve.settings import ServeSettings
from vivace.voices.voice import MAX_NOTE, MAX_REF_TEXT, Voice, check_voice_name

MAX_FIELDS = 16
MAX_FIELD_BYTES = 64 * 1024
SAMPLE_TEXT = "Hello, this is how I sound. I hope you like this voice: I will keep it from now on."
SAMPLE_FRAMES = 150  # 12 s, twice the usual length of the sample
SAMPLE_TRIES = 3
RECORDINGS = ("audio_sample", "ref_audio", "audio", "file")


class VoiceRequest(ClientInput):
    """A voice to create, with the field names of OpenAI and of vLLM-Omni."""

    model_config = ConfigDict(json_schema_extra={"required": ["name"]})

    name: str = Field("", validate_default=True, description="Of a-z 0-9 _ . -, at most 64.")
    type: Literal["", "audio_sample", "prompt"] = ""
    audio_sample: Any = Field(
        None,
        validation_alias=AliasChoices(*RECORDINGS),
        description="The recording; in JSON as base64.",
        json_schema_extra={"type": "string"},
    )
    transcript: str | None = Field(
        None,
        max_length=MAX_REF_TEXT,
        validation_alias=AliasChoices("transcript", "ref_text"),
        description="Every word of the recording.",
    )
    prompt: str | None = Field(
        None,
        max_length=MAX_DESCRIPTION_CHARS,
        validation_alias=AliasChoices("prompt", "description"),
        description="A description of the voice to design.",
    )
    language: str | None = Field(None, max_length=MAX_NOTE)
    model: str | None = None
    consent: str | None = Field(
        None,
        max_length=MAX_NOTE,
        description="Who agreed to the use of the recording. Stored with the voice.",
    )
    licence: str | None = Field(
        None, max_length=MAX_NOTE, description="Of the recording. Stored with the voice."
    )

    @field_validator("name")
    @classmethod
    def _as_key(cls, name: str) -> str:
        """The name under which the voice is stored."""
        key = re.sub(r"\s+", "-", name.strip().lower())
        if not key:
            raise RefusedError("name is missing", param="name")
        try:
            check_voice_name(key)
        except RequestError as error:
            raise RefusedError(str(error), param="name", code="invalid_name") from error
        return key

    @property
    def is_designed(self) -> bool:
        if self.type:
            return self.type == "prompt"
        return self.audio_sample is None and bool(self.prompt)

    def recording(self, settings: ServeSettings) -> bytes | None:
        """The recording to clone. None: the voice is designed from `prompt`."""
        if self.is_designed:
            if not (self.prompt or "").strip():
                raise RefusedError("prompt, the voice's description, is missing", param="prompt")
            return None
        if self.audio_sample is None:
            raise RefusedError("audio_sample, the recording, is missing", param="audio_sample")
        return decode_audio(self.audio_sample, settings.max_audio_bytes, "audio_sample")


DOCUMENTED = request_body(VoiceRequest, kinds=("application/json", "multipart/form-data"))


def routes(context: ServeContext) -> APIRouter:
    router = APIRouter(tags=["voices"])

    @router.post("/v1/audio/voices", openapi_extra=DOCUMENTED)
    async def create_voice(request: Request) -> Response:
        """Create a voice from a recording (`audio_sample`) or a description (`prompt`)."""
        context.streams.check_open()
        wanted = VoiceRequest.read(await _read_fields(request, context.settings))
        recording = wanted.recording(context.settings)
        async with context.enrolment_lock:
            await _check_free(context, wanted.name)
            if recording is None:
                created = await _design(context, wanted)
            else:
                created = await _clone(context, wanted, recording)
            return JSONResponse(replace(created, created=int(time.time())).as_json())

    @router.delete("/v1/audio/voices/{voice_id}")
    async def delete_voice(voice_id: str) -> Response:
        """Delete a cloned or designed voice. Preset voices cannot be deleted."""
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


# -- the form --------------------------------------------------------------------------------


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
    except RequestError:
        raise
    except Exception as error:  # Starlette raises an HTTPException inside a route
        reason = getattr(error, "detail", "") or type(error).__name__
        raise RefusedError(f"the form cannot be read: {reason}") from error
    fields: dict[str, Any] = {}
    try:
        for name, value in form.multi_items():
            if name in fields:
                raise RefusedError(f"the field {name[:80]!r} occurs twice", param=name[:80])
            if isinstance(value, UploadFile):
                fields[name] = await value.read(settings.max_audio_bytes + 1)
            elif len(value) > MAX_FIELD_BYTES and name not in RECORDINGS[:2]:
                raise RefusedError(
                    f"the field {name[:80]!r} has more than {MAX_FIELD_BYTES:,} characters",
                    param=name[:80],
                )
            else:
                check_text(value, name[:80])
                fields[name] = value
    finally:
        await form.close()
    return fields


# -- voices ----------------------------------------------------------------------------------


async def _check_free(context: ServeContext, name: str) -> None:
    listed = await asyncio.to_thread(find_voices, context)
    made = [voice for voice in listed if voice.kind != "preset"]
    if name in {voice.id.lower() for voice in listed} or name in (*OPENAI_NAMES, *SPEAKERS):
        raise RefusedError(
            f"name: a voice {name!r} exists; choose another name or delete that voice first",
            status=409,
            code="voice_exists",
            param="name",
        )
    if len(made) >= context.settings.max_voices:
        raise RefusedError(
            f"voice limit reached ({context.settings.max_voices}); delete a voice first",
            status=403,
            code="too_many_voices",
        )


async def _clone(context: ServeContext, wanted: VoiceRequest, recording: bytes) -> ListedVoice:
    model = await context.models.get(wanted.model, model_type="base")
    with context.models.in_use(model):
        if (refusal := model.card.refusals["clone"]) is not None:
            raise RefusedError(refusal, code="unsupported", param="model")
        transcript = (wanted.transcript or "").strip() or None
        if transcript is not None:
            model.card.check_context("transcript")
        voice = await asyncio.to_thread(_enrol, model, recording, wanted, transcript)
    return _listed(voice, "audio_sample", model)


def _enrol(model: ServedModel, audio: Any, wanted: VoiceRequest, transcript: str | None) -> Voice:
    try:
        voice = model.tts.clone(
            audio,
            transcript,
            name=wanted.name,
            language=wanted.language,
            licence=wanted.licence or None,
            consent=wanted.consent or None,
        )
    except AudioError as error:
        raise RefusedError(str(error), param="audio_sample", code="invalid_audio") from error
    model.voices.library.add(voice)
    return voice


def _listed(voice: Voice, kind: str, model: ServedModel, prompt: str | None = None) -> ListedVoice:
    return ListedVoice(
        voice.name,
        kind,
        model.name,
        voice.language,
        prompt=prompt,
        licence=voice.licence,
        consent=voice.consent,
    )


async def _design(context: ServeContext, wanted: VoiceRequest) -> ListedVoice:
    """Speak a sample and clone it, if a model clones; otherwise store the description.

    A clone sounds the same in every speech, a description does not.
    """
    assert wanted.prompt is not None
    designer = await context.models.get(wanted.model, model_type="voice_design")
    if not designer.card.can_design:
        raise RefusedError(
            f"{designer.card.refusals['design']}, such as Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign",
            code="unsupported",
            param="prompt",
        )
    listed = ListedVoice(wanted.name, "prompt", designer.name, wanted.language, 0, wanted.prompt)
    if any(card.can_clone for card in context.models.cards()):
        base = await context.models.get(model_type="base")
        with context.models.in_use(designer), context.models.in_use(base):
            voice = await asyncio.to_thread(_speak_and_enrol, designer, base, wanted)
        if voice is not None:
            listed = _listed(voice, "prompt", base, wanted.prompt)
    description = (wanted.name, wanted.prompt, wanted.language)
    await asyncio.to_thread(write_description, designer.voices.library, *description)
    return listed


def _speak_and_enrol(
    designer: ServedModel, base: ServedModel, wanted: VoiceRequest
) -> Voice | None:
    """None if every sample was too short or silent."""
    for _ in range(SAMPLE_TRIES):
        sample = designer.tts.speak(
            SAMPLE_TEXT,
            instruct=wanted.prompt,
            language="english" if "english" in designer.card.languages else "auto",
            max_frames=SAMPLE_FRAMES,
        )
        # A truncated sample lacks part of its text, so it is cloned without a transcript.
        has_context = base.card.can_clone_in_context and sample.finish_reason == "stop"
        transcript = SAMPLE_TEXT if has_context else None
        try:
            return _enrol(base, sample, wanted, transcript)
        except RefusedError as error:
            if error.code != "invalid_audio":
                raise
    return None
