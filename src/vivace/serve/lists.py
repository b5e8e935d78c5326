"""`/v1/models`, `/v1/audio/models` and `/v1/audio/voices`."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vivace.serve.card import Card
from vivace.serve.context import ServeContext
from vivace.serve.errors import RefusedError
from vivace.serve.voices import Listed


def routes(context: ServeContext) -> APIRouter:
    router = APIRouter()
    models = context.models

    @router.get("/v1/models")
    async def list_models() -> Response:
        data = [_model_object(card, models.created) for card in models.cards()]
        return JSONResponse({"object": "list", "data": data})

    @router.get("/v1/models/{name:path}")
    async def show_model(name: str) -> Response:
        for card in models.cards():
            if card.name == name:
                return JSONResponse(_model_object(card, models.created))
        raise RefusedError(
            f"no model named {name[:200]!r}; try one of: {', '.join(models.names)}",
            status=404,
            code="model_not_found",
            param="model",
        )

    @router.get("/v1/audio/models")
    async def list_audio_models() -> Response:
        return JSONResponse(
            {"models": [{"id": card.name, "name": card.name} for card in models.cards()]}
        )

    @router.get("/v1/audio/voices")
    async def list_voices(request: Request) -> Response:
        """Of every model, or of `?model=`; `?aliases=true` adds the names that stand for others."""
        wanted = request.query_params.get("model")
        with_aliases = request.query_params.get("aliases") in ("1", "true")
        listed = await asyncio.to_thread(_list_voices, context, wanted, with_aliases)
        if request.query_params.get("legacy") in ("1", "true"):
            return JSONResponse({"voices": [voice.id for voice in listed]})
        return JSONResponse({"object": "list", "voices": [voice.as_json() for voice in listed]})

    return router


def _list_voices(context: ServeContext, wanted: str | None, with_aliases: bool) -> list[Listed]:
    names = [wanted] if wanted in context.models.names else context.models.names
    found: dict[str, Listed] = {}
    for name in names:
        voices = context.models.voices(name)
        for voice in voices.listed(with_aliases=with_aliases) if voices else []:
            found.setdefault(voice.id, voice)
    return list(found.values())


def _model_object(card: Card, created: int) -> dict[str, Any]:
    return {
        "id": card.name,
        "object": "model",
        "created": created,
        "owned_by": "vivace",
        "vivace": card.as_json(),
    }
