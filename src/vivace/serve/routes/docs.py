"""`/docs`: one page that describes all endpoints, without scripts and without a CDN.

It is rendered from the OpenAPI description: fields with their ranges, an example and the responses
of every endpoint.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
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
# What curl sends besides the address: a JSON body, or options. Other endpoints need nothing.
SPEECH = {"input": "Hello from my own machine.", "voice": "heart"}
TEXT = {"text": "Hello from my own machine."}
BODIES: Mapping[str, Mapping[str, Any] | str] = {
    "POST /v1/audio/speech": SPEECH | {"speed": 1.1, "response_format": "mp3"},
    "POST /v1/audio/voices": "-F name=my-voice -F audio_sample=@me.wav -F transcript='My words.'",
    "POST /v1/audio/encode": "-H 'Content-Type: audio/pcm' --data-binary @speech.pcm",
    "POST /v1/text-to-speech/{voice_id}": TEXT,
    "POST /v1/text-to-speech/{voice_id}/stream": TEXT,
    "POST /v1/text-to-speech/{voice_id}/with-timestamps": TEXT,
    "POST /v1/text-to-speech/{voice_id}/stream/with-timestamps": TEXT,
    "POST /dev/captioned_speech": SPEECH | {"stream": False},
}
PATH_VALUES = {"voice_id": "heart", "name": "vivace"}
ERROR_EXAMPLE = {
    "error": {
        "message": "speed: must be from 0.25 to 4, not 9",
        "type": "invalid_request_error",
        "param": "speed",
        "code": None,
    }
}
LOCATIONS = {"path": "In the path", "query": "In the query", "header": "Headers"}
SIZES = {"maxLength": "characters", "maxItems": "items", "maxProperties": "entries"}
STYLE = """
@font-face { font-family: Newsreader; font-style: italic; font-weight: 700;
  src: url(page/newsreader-bold-italic.woff2) }
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 18%, transparent);
  --soft: light-dark(#5f5f66, #9d9da5); --sheet: light-dark(#f3f3f1, #19191c);
  --accent: light-dark(#d3064a, #ff4f80); background: light-dark(#fcfcfb, #0f0f11) }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem }
h1, h2 { font: italic 700 2.125rem/1 Newsreader, Georgia, serif } a { color: var(--accent) }
h2 { font-size: 1.375rem; margin: 2rem 0 .5rem } p { margin: .5rem 0 }
nav ul { columns: 20rem; list-style: none; padding: 0 } nav a { display: block; padding: .6rem 0 }
nav a, h3, code, pre { font: .875rem/1.5 ui-monospace, monospace; overflow-wrap: anywhere }
nav a { text-decoration: none; color: inherit } nav a:hover { text-decoration: underline }
section { border-top: 1px solid var(--line); padding: 1rem 0; margin-top: 1rem }
h3 { font-size: 1.0625rem; font-weight: 600; margin: 0 }
b { display: inline-block; min-width: 4.5rem; color: var(--accent) }
table { border-collapse: collapse; width: 100%; table-layout: fixed; font-size: .9rem }
caption { text-align: left; font-weight: 600; padding: 1rem 0 .3rem }
td, th { border-top: 1px solid var(--line); padding: .35rem .8rem .35rem 0; text-align: left;
  vertical-align: top; font-weight: 400; overflow-wrap: anywhere }
th { width: 11rem } td:nth-child(2) { width: 14rem; color: var(--soft) }
pre { background: var(--sheet); padding: .8rem 1rem; white-space: pre-wrap; margin: .8rem 0 }
@media (max-width: 40rem) { td, th, tr { display: block; width: auto !important }
  td, th { border: 0; padding: .1rem 0 }
  tr { border-top: 1px solid var(--line); padding: .4rem 0 } }
"""
STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode("ascii")
POLICY = (
    f"default-src 'none'; style-src 'sha256-{STYLE_HASH}'; font-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEAD = f"""<!doctype html><html lang="en"><head><meta charset="utf-8">
<title>Vivace {__version__}: API reference</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>
<body><header><h1>Vivace</h1>
<p>API reference, version {__version__}. To listen: <a href="./">the page</a>. For programs:
<a href="openapi.json">openapi.json</a>.</p>
<p>In the examples <code>$URL</code> is the address of this server, such as
<code>127.0.0.1:8000</code>. If the server needs a key, add
<code>-H "Authorization: Bearer $KEY"</code>. Every response has an <code>x-request-id</code>.
Errors have this form:</p>
<pre>{escape(json.dumps(ERROR_EXAMPLE))}</pre></header>
"""


def routes(context: ServeContext) -> APIRouter:
    router = APIRouter()

    @router.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        schema = request.app.openapi()
        return HTMLResponse("\n".join(render(schema)), headers={"content-security-policy": POLICY})

    return router


def render(schema: dict[str, Any]) -> Iterator[str]:
    """The page for an OpenAPI description, line by line."""
    ranks = {path: (path != FIRST_PATH, not path.startswith("/v")) for path in schema["paths"]}
    operations = {
        f"{method.upper()} {path}": operation
        for path, methods in sorted(schema["paths"].items(), key=lambda item: ranks[item[0]])
        for method, operation in methods.items()
    }
    sockets = {f"WS {path}": {"description": words} for path, words in SOCKETS.items()}
    yield HEAD
    yield '<nav aria-label="Endpoints"><ul>'
    for name in operations | sockets:
        yield f'<li><a href="#{_anchor(name)}">{_name(name)}</a>'
    yield "</ul></nav><main><h2>HTTP</h2>"
    for name, operation in operations.items():
        yield from _endpoint(name, operation)
    yield "<h2>WebSockets</h2>"
    for name, operation in sockets.items():
        yield from _endpoint(name, operation)
    yield "</main></body></html>"


def example(name: str) -> str:
    """A curl command for `METHOD /path`."""
    method, _, path = name.partition(" ")
    for key, value in PATH_VALUES.items():
        path = path.replace(f"{{{key}}}", value)
    body = BODIES.get(name, "-X DELETE" if method == "DELETE" else "")
    if not isinstance(body, str):
        body = f"-H 'Content-Type: application/json' \\\n  -d '{json.dumps(body)}'"
    return f'curl "$URL{path}" {body}'.strip()


def _endpoint(name: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f'<section id="{_anchor(name)}"><h3>{_name(name)}</h3>'
    yield f"<p>{_words(operation.get('description') or operation.get('summary', ''))}</p>"
    parameters = operation.get("parameters", [])
    for where, caption in LOCATIONS.items():
        found = [each for each in parameters if each["in"] == where]
        rows = [
            _row(each["name"], each["schema"], bool(each.get("required")), each.get("description"))
            for each in found
        ]
        yield _table(caption, rows)
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        fields, needed = content["schema"].get("properties", {}), content["schema"].get("required")
        rows = [_row(key, field, key in (needed or [])) for key, field in fields.items()]
        yield _table("Body", rows) if rows else f"<p>Body: <code>{kind}</code></p>"
        break  # forms have the same fields as JSON
    if not name.startswith("WS"):
        yield f"<pre>{escape(example(name))}</pre>"
    answers = operation.get("responses", {})
    yield _table("Responses", [_answer(status, answer) for status, answer in answers.items()])
    yield "</section>"


def _table(caption: str, rows: list[str]) -> str:
    return f"<table><caption>{caption}</caption>{''.join(rows)}</table>" if rows else ""


def _cells(*cells: str) -> str:
    return f'<tr><th scope="row">{cells[0]}' + "".join(f"<td>{cell}" for cell in cells[1:])


def _row(name: str, field: dict[str, Any], is_required: bool, words: str | None = None) -> str:
    kinds = [each for each in field.get("anyOf", [field]) if each.get("type") != "null"]
    parts = [part for kind in kinds for part in _limits(kind)]
    if is_required:
        parts.append("required")
    elif (default := field.get("default")) is not None:
        parts.append(f"default {json.dumps(default)}")
    about = _words(words or field.get("description", ""))
    return _cells(f"<code>{escape(name)}</code>", escape(", ".join(dict.fromkeys(parts))), about)


def _limits(kind: dict[str, Any]) -> Iterator[str]:
    """The type and its range: `number`, `0.25 to 4`."""
    if "enum" in kind:
        yield " | ".join(map(str, kind["enum"]))
        return
    yield str(kind.get("type", "object"))
    low, high = kind.get("minimum"), kind.get("maximum")
    if low is not None and high is not None:
        lowest = (kind.get("not") or {}).get("exclusiveMaximum")  # besides 0
        first = _number(low) if lowest is None else f"{_number(low)} or {_number(lowest)}"
        yield f"{first} to {_number(high)}"
    for key, unit in SIZES.items():
        if key in kind:
            yield f"at most {kind[key]:,} {unit}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) and value < 1e15 else f"{value:.4g}"


def _answer(status: str, answer: dict[str, Any]) -> str:
    content = answer.get("content", {})
    words = answer["description"].replace("Successful Response", "")
    examples = [each["example"] for each in content.values() if "example" in each]
    shown = "".join(f"<pre>{escape(each)}</pre>" for each in examples)
    return _cells(escape(status), escape(", ".join(content)), _words(words) + shown)


def _words(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _anchor(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _name(name: str) -> str:
    method, _, path = name.partition(" ")
    return f"<b>{method}</b>{escape(path)}"
