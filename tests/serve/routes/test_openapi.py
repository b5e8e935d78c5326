"""The OpenAPI description and the reference page list every route and response."""

from __future__ import annotations

import html
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import BaseRoute, Route, WebSocketRoute

from tests.support.project import ROOT
from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from vivace.serve.routes import docs
from vivace.serve.settings import ServeSettings

SPEECH = "/v1/audio/speech"
FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm")
UPGRADE_ONLY = "refuse"  # HTTP routes that return 426 beside a WebSocket


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    voices = tmp_path_factory.mktemp("voices")
    with running(ServeSettings(port=0, voices=voices), ScriptedSpeech(default=Plan(3)).load) as up:
        yield up


@pytest.fixture(scope="module")
def schema(server: Running) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{server.url}/openapi.json").json()
    return found


def content_of(schema: dict[str, Any], path: str) -> dict[str, Any]:
    content: dict[str, Any] = schema["paths"][path]["post"]["responses"]["200"]["content"]
    return content


def media_type(answer: httpx.Response) -> str:
    return answer.headers["content-type"].split(";")[0]


# -- responses -----------------------------------------------------------------------------------


@pytest.mark.parametrize("response_format", FORMATS)
def test_content_type_of_every_format_is_described_as_binary(
    client: httpx.Client, schema: dict[str, Any], response_format: str
) -> None:
    body = {"input": "Hello.", "response_format": response_format}
    answer = client.post(SPEECH, json=body)
    described = content_of(schema, SPEECH)[media_type(answer)]
    assert described["schema"] == {"type": "string", "format": "binary"}


def test_events_are_described_beside_the_audio(
    client: httpx.Client, schema: dict[str, Any]
) -> None:
    answer = client.post(SPEECH, json={"input": "Hello.", "stream_format": "sse"})
    described = content_of(schema, SPEECH)[media_type(answer)]
    for kind in set(re.findall(r"^event: (\S+)", answer.text, re.MULTILINE)):
        assert kind in described["schema"]["description"]


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/text-to-speech/{voice_id}", "text"),
        ("/v1/text-to-speech/{voice_id}/stream", "text"),
        ("/v1/text-to-speech/{voice_id}/with-timestamps", "text"),
        ("/v1/text-to-speech/{voice_id}/stream/with-timestamps", "text"),
        ("/dev/captioned_speech", "input"),
        (SPEECH, "input"),
    ],
)
def test_response_of_every_speech_route_is_of_a_described_type(
    client: httpx.Client, schema: dict[str, Any], path: str, field: str
) -> None:
    answer = client.post(path.replace("{voice_id}", "alloy"), json={field: "Hello."})
    assert answer.status_code == 200, answer.text
    described = content_of(schema, path)
    assert media_type(answer) in described
    body = schema["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["required"] == [field]


def test_errors_of_every_operation_are_described(schema: dict[str, Any]) -> None:
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            assert {"200", "4XX", "5XX"} == operation["responses"].keys(), path


# -- docs/reference/endpoints.md -----------------------------------------------------------------


def endpoints(routes: list[BaseRoute]) -> set[str]:
    """Return `METHOD /path` of every route, WebSockets as `WS /path`."""
    found = set()
    for route in routes:
        if isinstance(route, WebSocketRoute):
            found.add(f"WS {route.path}")
        elif isinstance(route, Route) and route.name != UPGRADE_ONLY:
            path = re.sub(r":\w+}", "}", route.path)
            found |= {f"{method} {path}" for method in (route.methods or set()) - {"HEAD"}}
    return found


def test_reference_page_lists_every_route_and_no_other(server: Running) -> None:
    page = (ROOT / "docs" / "reference" / "endpoints.md").read_text("utf-8")
    methods = "GET|POST|DELETE|PUT|PATCH|WS"
    listed = set(re.findall(rf"^(?:### |\| `)((?:{methods}) /[^`\n]*)", page, re.MULTILINE))
    served = endpoints(server.server.app.routes)
    assert len(served) > 25
    assert served - listed == set(), "routes that the page does not list"
    assert listed - served == set(), "the page lists what is not served"


def test_api_reference_shows_ranges_defaults_and_responses(server: Running) -> None:
    page = httpx.get(f"{server.url}/docs").text
    for words in (
        "number, 0.25 to 4, default 1.0",
        "mp3 | opus | aac | flac | wav | pcm, default &quot;mp3&quot;",
        "number, 0 or 1e-05 to 100",
        "integer, 8,000 to 48,000",
        "object, at most 500 entries",
        "string, required",
        "audio/mpeg, audio/ogg",
        "event: speech.audio.delta",
        "The request is not valid.",
    ):
        assert words in page, words


def test_error_of_the_api_reference_is_real(server: Running) -> None:
    answer = httpx.post(f"{server.url}{SPEECH}", json={"input": "Hello.", "speed": 9})
    assert answer.json() == docs.ERROR_EXAMPLE


def test_examples_of_the_api_reference_run(server: Running, tmp_path: Path) -> None:
    page = httpx.get(f"{server.url}/docs").text
    examples = [html.unescape(found) for found in re.findall(r"<pre>(curl .*?)</pre>", page, re.S)]
    operations = [
        f"{method.upper()} {path}"
        for path, methods in server.server.app.openapi()["paths"].items()
        for method in methods
    ]
    assert sorted(examples) == sorted(map(docs.example, operations))
    assert {line for line in docs.BODIES if line not in operations} == set()
    (tmp_path / "speech.pcm").write_bytes(bytes(4_800))
    for command in examples:
        if "my-voice" in command or "DELETE" in command:  # the embedded model does not clone
            continue
        command = command.replace("curl ", "curl --silent --fail --output out ", 1)
        subprocess.run(
            ["bash", "-c", command], env={**os.environ, "URL": server.url}, cwd=tmp_path, check=True
        )
        assert (tmp_path / "out").stat().st_size > 0, command


def test_api_reference_lists_every_route(server: Running) -> None:
    page = httpx.get(f"{server.url}/docs").text
    routes = [route for route in server.server.app.routes if isinstance(route, Route)]
    assert docs.SOCKETS.keys() == {
        r.path for r in server.server.app.routes if isinstance(r, WebSocketRoute)
    }
    for route in routes:
        if getattr(route, "include_in_schema", True):
            assert re.sub(r":\w+}", "}", route.path) in page
