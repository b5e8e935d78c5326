"""`/docs`: one page that lists all endpoints, without scripts and without a CDN."""

from __future__ import annotations

import base64
import hashlib
import re
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
    "input.cancel, session.close. The server sends binary audio.",
    "/v1/realtime": "OpenAI's realtime events, as far as speech needs them.",
    "/v1/text-to-speech/{voice_id}/stream-input": "ElevenLabs' text stream.",
    "/v1/text-to-speech/{voice_id}/multi-stream-input": "The same, with contexts.",
}
FIRST_PATH = "/v1/audio/speech"
STYLE = """
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 18%, transparent);
  --accent: light-dark(#d3064a, #ff4f80); background: light-dark(#fcfcfb, #0f0f11) }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem }
h1 { font: italic 700 2.125rem/1 Palatino, P052, Georgia, serif } a { color: var(--accent) }
section { border-top: 1px solid var(--line); padding: .8rem 0; margin-top: .8rem }
h2 { font: 600 1rem ui-monospace, monospace; margin: .3rem 0; overflow-wrap: anywhere }
b { display: inline-block; min-width: 4.5rem; color: var(--accent) } p { margin: .2rem 0 }
table { border-collapse: collapse; width: 100%; font-size: .9rem; margin: .6rem 0 }
td { border-top: 1px solid var(--line); padding: .3rem .6rem .3rem 0; vertical-align: top }
td { overflow-wrap: anywhere } td:first-child { min-width: 10rem }
code { font: .9em ui-monospace, monospace }
@media (max-width: 40rem) { td:last-child { display: none } }
"""
STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode("ascii")
POLICY = (
    f"default-src 'none'; style-src 'sha256-{STYLE_HASH}'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


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
    yield '<p>For programs: <a href="openapi.json">openapi.json</a>. To listen: <a href="./">the '
    yield 'page</a>. Errors are <code>{"error": {"message", "type", "param", "code"}}</code>.</p>'
    ranks = {path: (path != FIRST_PATH, not path.startswith("/v")) for path in schema["paths"]}
    for path, methods in sorted(schema["paths"].items(), key=lambda item: ranks[item[0]]):
        for method, operation in methods.items():
            yield from _endpoint(method.upper(), path, operation)
    for path, words in SOCKETS.items():
        yield from _endpoint("WS", path, {"description": words})
    yield "</body></html>"


def _endpoint(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"<section><h2><b>{method}</b>{escape(path)}</h2>"
    yield f"<p>{_words(operation.get('description') or operation.get('summary', ''))}</p>"
    rows = [
        _row(each["name"], each["schema"], each["in"]) for each in operation.get("parameters", [])
    ]
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        body = content["schema"]
        needed = body.get("required", [])
        rows += [
            _row(name, field, kind + (", required" if name in needed else ""))
            for name, field in body.get("properties", {}).items()
        ]
        break  # forms have the same fields as JSON
    yield f"<table>{''.join(rows)}</table></section>" if rows else "</section>"


def _words(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _row(name: str, field: dict[str, Any], where: str) -> str:
    kinds = field.get("enum") or [
        each.get("type", "object") for each in field.get("anyOf", [field])
    ]
    words = ", ".join(str(kind) for kind in kinds)
    default = field.get("default")
    words += f"; default: {default}" if default is not None else ""
    cells = (f"<code>{escape(name)}</code>", escape(words), _words(field.get("description", "")))
    return "<tr>" + "".join(f"<td>{cell}" for cell in (*cells, escape(where))) + "</tr>"
