"""`/docs`: every endpoint on one page of our own, without scripts and without a CDN."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from vivace._version import __version__
from vivace.serve.context import ServeContext

SOCKETS = {
    "/v1/audio/speech/stream": "vLLM-Omni's messages: session.config, input.text, input.done, "
    "input.cancel, session.close; binary audio comes back.",
    "/v1/realtime": "OpenAI's realtime events, as far as speech needs them.",
    "/v1/text-to-speech/{voice_id}/stream-input": "ElevenLabs' text stream.",
    "/v1/text-to-speech/{voice_id}/multi-stream-input": "The same, with contexts.",
}
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
STYLE = """
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 18%, transparent) }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem }
section { border-top: 1px solid var(--line); padding: .6rem 0 }
h2 { font: 600 1rem ui-monospace, monospace; margin: .3rem 0; overflow-wrap: anywhere }
b { display: inline-block; min-width: 4.5rem } p { margin: .2rem 0 }
table { border-collapse: collapse; width: 100%; font-size: .9rem; margin: .4rem 0 }
td { border-top: 1px solid var(--line); padding: .2rem .6rem .2rem 0; vertical-align: top }
code { font-family: ui-monospace, monospace }
"""


def routes(context: ServeContext) -> APIRouter:
    router = APIRouter()

    @router.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        schema = request.app.openapi()
        return HTMLResponse("\n".join(render(schema)), headers={"content-security-policy": POLICY})

    return router


def render(schema: dict[str, Any]) -> Iterator[str]:
    yield f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Vivace {__version__}'
    yield "</title>"
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<style>{STYLE}</style><body><h1>Vivace {__version__}</h1>"
    yield '<p>For programs: <a href="openapi.json">openapi.json</a>. Errors have the shape '
    yield '<code>{"error": {"message", "type", "param", "code"}}</code>.</p>'
    for path, methods in schema["paths"].items():
        for method, told in methods.items():
            yield from _endpoint(method.upper(), path, told, schema)
    for path, words in SOCKETS.items():
        yield from _endpoint("WS", path, {"description": words}, schema)
    yield "</body></html>"


def _endpoint(
    method: str, path: str, told: dict[str, Any], schema: dict[str, Any]
) -> Iterator[str]:
    yield f"<section><h2><b>{method}</b>{escape(path)}</h2>"
    yield f"<p>{escape(told.get('description') or told.get('summary', ''))}</p>"
    rows = [_row(each["name"], each["schema"], each["in"]) for each in told.get("parameters", [])]
    for kind, content in told.get("requestBody", {}).get("content", {}).items():
        body = content["schema"]
        needed = body.get("required", [])
        rows += [
            _row(name, field, kind + (", required" if name in needed else ""))
            for name, field in body.get("properties", {}).items()
        ]
        break  # forms have the fields of JSON
    yield f"<table>{''.join(rows)}</table></section>" if rows else "</section>"


def _row(name: str, field: dict[str, Any], where: str) -> str:
    kinds = field.get("enum") or [
        each.get("type", "object") for each in field.get("anyOf", [field])
    ]
    words = ", ".join(str(kind) for kind in kinds)
    default = field.get("default")
    words += f"; default: {default}" if default is not None else ""
    cells = (f"<code>{escape(name)}</code>", escape(words), escape(field.get("description", "")))
    return "<tr>" + "".join(f"<td>{cell}" for cell in (*cells, escape(where))) + "</tr>"
