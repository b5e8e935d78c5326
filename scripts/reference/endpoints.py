"""The page of HTTP endpoints, from the server's OpenAPI description."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from reference.markdown import code, page, sentence, table
from vivace.serve.app import create_app
from vivace.serve.context import ServeContext
from vivace.serve.routes.docs import SOCKETS
from vivace.serve.setting_sources import resolve_settings

INTRODUCTION = """\
A running server has the same description at `/docs` and, for programs, at `/openapi.json`. Unknown
fields of a body are ignored, and `null` means that a field was not sent. [The server](../server.md)
explains models, voices, access and [statuses](../server.md#errors)."""
GROUPS = {
    "Speech": ("/v1/audio/speech", "/v1/audio/encode", "/dev/"),
    "Models and voices": ("/v1/models", "/v1/audio/"),
    "ElevenLabs": ("/v1/text-to-speech", "/v1/voices", "/v2/voices"),
    "Health and metrics": ("/health", "/metrics", "/v1"),
}
PAGES = {
    "/": "The web page.",
    "/page/{name}": "Files of the web page.",
    "/favicon.ico": "The icon of the web page.",
    "/docs": "A page that lists all endpoints.",
    "/openapi.json": "The OpenAPI description.",
}
SOCKET_TEXT = "[WebSockets](../websockets.md) describes the messages of each socket."


def endpoints_page() -> str:
    paths = create_app(ServeContext.create(resolve_settings({}, {}))).openapi()["paths"]
    operations = [(path, m, one) for path, of in paths.items() for m, one in of.items()]
    parts = []
    for title, prefixes in GROUPS.items():
        own = [one for one in operations if one[0].startswith(prefixes)]
        operations = [one for one in operations if one not in own]
        parts += [f"## {title}", *(text for one in own for text in _operation(*one))]
    assert not operations, operations
    rows = [(code(f"GET {path}"), text) for path, text in PAGES.items()]
    parts += [f"## Pages\n\n{table(('path', 'content'), rows)}"]
    rows = [(code(f"WS {path}"), sentence(text)) for path, text in SOCKETS.items()]
    parts += [f"## WebSockets\n\n{table(('path', 'messages'), rows)}", SOCKET_TEXT]
    return page("Endpoints", INTRODUCTION, *parts)


def _operation(path: str, method: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"### {method.upper()} {path}"
    yield sentence(operation.get("description") or operation["summary"])
    rows = [
        (code(one["name"]), one["in"], *_field(one["schema"]))
        for one in operation.get("parameters", [])
    ]
    contents = operation.get("requestBody", {}).get("content", {})
    for kind, content in contents.items():
        schema = content["schema"]
        required = schema.get("required", ())
        place = {"application/json": "JSON", "multipart/form-data": "form"}.get(kind, kind)
        for name, field in schema.get("properties", {}).items():  # none: the body is binary
            kind_text, default, text = _field(field)
            default = "required" if name in required else default
            rows.append((code(name), place, kind_text, default, text))
        break  # forms have the same fields
    if rows:
        yield table(("field", "in", "type", "default", "description"), rows)
    yield _responses(operation["responses"])


def _responses(responses: dict[str, Any]) -> str:
    kinds = responses["200"].get("content", {})
    return f"Returns {', '.join(map(code, kinds))}." if kinds else "Returns an empty response."


def _field(schema: dict[str, Any]) -> tuple[str, str, str]:
    parts = [one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"]
    kinds = ", ".join(_kind(part) for part in parts)
    default = schema.get("default")
    written = (
        ""
        if default is None
        else code(str(default).lower() if default in (True, False) else default)
    )
    return kinds, written, sentence(schema.get("description", ""))


def _kind(part: dict[str, Any]) -> str:
    if "enum" in part:
        return ", ".join(map(code, part["enum"]))
    kind = str(part.get("type", "object"))
    low, high = part.get("minimum"), part.get("maximum")
    return kind if low is None or high is None else f"{kind} from {low:,g} to {high:,g}"
