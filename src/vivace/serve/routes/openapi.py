"""The server's OpenAPI description: FastAPI's, with OpenAI's errors instead of status 422.

Routes that return audio or parse their body describe them with the functions below.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from vivace.audio.formats import FORMATS

PLAIN = {"/metrics": "text/plain"}
BINARY = {"schema": {"type": "string", "format": "binary"}}
HEADERS = {
    "x-request-id": {"schema": {"type": "string"}, "description": "The id of the request."},
    "x-vivace-ignored": {
        "schema": {"type": "string"},
        "description": "Fields that were ignored, separated by commas.",
    },
    "x-vivace-provenance": {
        "schema": {"type": "string"},
        "description": "That the audio is AI-generated: tool, model, kind of voice and marks.",
    },
    "x-vivace-skipped": {
        "schema": {"type": "string"},
        "description": "How many characters of `input` the model does not read, and which, "
        "percent-encoded: `5; %D0%9C%D0%B0`.",
    },
}


class ErrorFields(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    error: ErrorFields


def describe_api(app: FastAPI) -> dict[str, Any]:
    """Return the description, built once. All error responses have OpenAI's format."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        schema["components"] = {"schemas": {"Error": ErrorBody.model_json_schema()}}
        for path, methods in schema["paths"].items():
            for operation in methods.values():
                _replace_responses(operation["responses"], PLAIN.get(path))
        text = json.dumps(schema).replace("#/$defs/", "#/components/schemas/")
        definitions: dict[str, Any] = {}
        schema = json.loads(text, object_hook=lambda found: _lift(found, definitions))
        schema["components"]["schemas"] |= definitions
        app.openapi_schema = schema
    return app.openapi_schema


def audio_response(
    description: str, formats: Sequence[str], **others: dict[str, Any]
) -> dict[str, Any]:
    """Describe binary audio in one of `formats`; `others` are further content types."""
    content = {FORMATS[name].content_type: BINARY for name in formats}
    return {"description": description, "headers": HEADERS, "content": content | others}


def json_response(description: str, model: type[BaseModel]) -> dict[str, Any]:
    content = {"application/json": {"schema": model.model_json_schema()}}
    return {"description": description, "headers": HEADERS, "content": content}


def request_body(
    model: type[BaseModel],
    *others: type[BaseModel],
    without: Sequence[str] = (),
    kinds: Sequence[str] = ("application/json",),
) -> dict[str, dict[str, Any]]:
    """Describe the body of a route that parses it: the fields of all models, except `without`."""
    schema = model.model_json_schema()
    for other in others:
        schema["properties"] |= other.model_json_schema()["properties"]
    for name in without:
        del schema["properties"][name]
    return {"requestBody": {"required": True, "content": {k: {"schema": schema} for k in kinds}}}


def _replace_responses(responses: dict[str, Any], plain: str | None) -> None:
    for status in [status for status in responses if status != "200"]:
        del responses[status]
    if plain is not None:
        responses["200"]["content"] = {plain: {"schema": {"type": "string"}}}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    responses["4XX"] = {"description": "The request is not valid.", "content": error}
    responses["5XX"] = {
        "description": "The engine failed, or the server is loading or shutting down.",
        "content": error,
    }


def _lift(found: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Move Pydantic's definitions to `definitions`."""
    definitions.update(found.pop("$defs", {}))
    return found
