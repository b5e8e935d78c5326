"""`GET` routes that list models and voices."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vivace.serve.context import ServeContext
from vivace.serve.errors import RefusedError
from vivace.serve.models.card import Card
from vivace.serve.models.voices import ListedVoice


def routes(context: ServeContext) -> APIRouter:
    router = APIRouter(tags=["lists"])
    models = context.models

    @router.get("/v1/models")
    async def list_models(http: Request) -> Response:
        """The served models in OpenAI's format, or in ElevenLabs' with the header `xi-api-key`."""
        if "xi-api-key" in http.headers:
            return JSONResponse([_elevenlabs_object(card) for card in models.cards()])
        data = [_model_object(card, models.created) for card in models.cards()]
        return JSONResponse({"object": "list", "data": data})

    @router.get("/v1/models/{name:path}")
    async def show_model(name: str) -> Response:
        """One model. Its name may contain slashes."""
        for card in models.cards():
            if card.name == name:
                return JSONResponse(_model_object(card, models.created))
        raise RefusedError(
            f"no model named {name[:200]!r}; try one of: {', '.join(models.known_names)}",
            status=404,
            code="model_not_found",
            param="model",
        )

    @router.get("/v1/audio/models")
    async def list_audio_models() -> Response:
        """The served models with their capabilities."""
        longest = context.settings.max_text_chars
        return JSONResponse(
            {
                "models": [
                    {"id": card.name, "name": card.name, "max_input_chars": longest}
                    | card.as_json()
                    for card in models.cards()
                ]
            }
        )

    @router.get("/v1/audio/voices")
    async def list_voices(
        model: str | None = None, aliases: bool = False, legacy: bool = False
    ) -> Response:
        """The voices of all models, or of one. `aliases` adds alternative names."""
        listed = await asyncio.to_thread(find_voices, context, model, with_aliases=aliases)
        if legacy:
            return JSONResponse({"voices": [voice.id for voice in listed]})
        shown = [voice.as_json() for voice in listed]
        return JSONResponse({"object": "list", "data": shown, "voices": shown})

    @router.get("/v1/audio/voices/{voice_id}")
    async def show_voice(voice_id: str) -> Response:
        """One voice."""
        listed = await asyncio.to_thread(find_voices, context, None, with_aliases=True)
        for voice in listed:
            if voice.id.lower() == voice_id.lower():
                return JSONResponse(voice.as_json())
        raise no_such_voice(voice_id, [voice.id for voice in listed if voice.kind != "alias"])

    return router


def find_voices(
    context: ServeContext, model: str | None = None, *, with_aliases: bool = False
) -> list[ListedVoice]:
    """The voices of all models, or of one, without duplicate names. Reads the library's folder."""
    names = [model] if context.models.serves(model) else context.models.known_names
    found: dict[str, ListedVoice] = {}
    for name in names:
        voices = context.models.voices(str(name))
        for voice in voices.listed(with_aliases=with_aliases) if voices else []:
            found.setdefault(voice.id, voice)
    return list(found.values())


def no_such_voice(name: str, known: list[str]) -> RefusedError:
    hint = f"try one of: {', '.join(known)}" if known else "no voice exists yet"
    return RefusedError(
        f"no voice named {name[:200]!r}; {hint}", status=404, code="voice_not_found", param="voice"
    )


def _model_object(card: Card, created: int) -> dict[str, Any]:
    known = {"id": card.name, "object": "model", "created": created, "owned_by": "vivace"}
    return known | card.as_json()


def _elevenlabs_object(card: Card) -> dict[str, Any]:
    named = [name for name in card.languages if name != "auto"]
    return {
        "model_id": card.name,
        "name": card.name,
        "can_do_text_to_speech": True,
        "can_do_voice_conversion": False,
        "can_be_finetuned": False,
        "can_use_style": False,
        "can_use_speaker_boost": False,
        "languages": [{"language_id": name, "name": name.title()} for name in named],
    }
