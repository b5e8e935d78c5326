"""Access control of every route: API keys, host names and origins."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.support.raw_http import talk
from tests.support.scripted_tts import ScriptedSpeech
from tests.support.serving import Running, running
from vivace.serve.settings import ServeSettings

KEY = "s3cret, with / and ="
KEYS = ("another", KEY)
PUBLIC = {"/", "/health", "/health/live", "/health/ready", "/favicon.ico"}
ALLOWED = "https://app.example"


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    voices: Path = tmp_path_factory.mktemp("voices")
    settings = ServeSettings(port=0, voices=voices, api_keys=KEYS, allowed_origins=(ALLOWED,))
    with running(settings, ScriptedSpeech().load) as server:
        yield server


@pytest.fixture(scope="module")
def http(keyed: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=keyed.url, timeout=60.0) as client:
        yield client


def every_request(server: Running) -> list[tuple[str, str]]:
    """Return every method and path of the router, with its parameters filled in."""
    found = []
    for template, methods in server.server.app.openapi()["paths"].items():
        path = re.sub(r"\{[^}]*\}", "x", template)
        found += [(method.upper(), path) for method in methods]
    return [*found, ("GET", "/openapi.json"), ("GET", "/nowhere"), ("POST", "/")]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Basic {KEY}"},
        {"xi-api-key": ""},
        {"xi-api-key": "wrong"},
        {"authorization": "Bearer another, s3cret"},
    ],
)
def test_request_without_a_key_gets_only_the_page_and_health(
    keyed: Running, http: httpx.Client, headers: dict[str, str]
) -> None:
    requests = every_request(keyed)
    assert len(requests) > 12
    for method, path in requests:
        is_public = method == "GET" and (path in PUBLIC or path.startswith("/page/"))
        answer = http.request(method, path, headers=headers)
        assert (answer.status_code == 401) != is_public, (method, path)
        if not is_public:
            assert answer.json()["error"]["type"] == "authentication_error"
            assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer  {KEY}"},
        {"xi-api-key": KEY},
        {"xi-api-key": "another"},
        {"authorization": "Bearer wrong", "xi-api-key": KEY},
    ],
)
def test_valid_key_opens_every_route(http: httpx.Client, headers: dict[str, str]) -> None:
    assert http.get("/v1/models", headers=headers).status_code == 200
    assert http.get("/nowhere", headers=headers).status_code == 404
    assert http.get("/metrics", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/health/../v1/models", "//health/live", "/page/../v1/models", "/health/live/x", "/page"],
)
def test_unusual_path_spelling_does_not_bypass_the_key(keyed: Running, path: str) -> None:
    request = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = talk(keyed.port, request.encode())
    assert answer[:12] in (b"HTTP/1.1 401", b"HTTP/1.1 404")
    assert b'"owned_by"' not in answer


def test_empty_bearer_is_not_a_key(keyed: Running, server: Running) -> None:
    request = b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    request += b"Authorization: Bearer \r\n\r\n"
    assert talk(keyed.port, request).startswith(b"HTTP/1.1 401")
    assert talk(server.port, request).startswith(b"HTTP/1.1 200")


def test_url_in_the_host_header_does_not_make_a_route_public(keyed: Running) -> None:
    for host in ("127.0.0.1/health/live?", "x/health", "a@b", "127.0.0.1:99999999", "a b", ""):
        request = f"GET /v1/models HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        assert talk(keyed.port, request.encode())[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 401")


# -- sockets ---------------------------------------------------------------------------------


async def accept(websocket: WebSocket) -> None:
    """Accept every handshake."""
    await websocket.accept()
    await websocket.close()


def handshake(server: Running, path: str = "/socket", **options: object) -> tuple[int, str | None]:
    """Return the status of the handshake and the accepted subprotocol."""

    routes = server.server.app.router.routes
    if not any(getattr(route, "path", "") == "/socket" for route in routes):
        routes.append(WebSocketRoute("/socket", accept))

    async def go() -> tuple[int, str | None]:
        url = server.url.replace("http", "ws", 1) + path
        try:
            async with connect(url, proxy=None, **options) as opened:  # type: ignore[arg-type]
                return 101, opened.subprotocol
        except InvalidStatus as error:
            has_id = "x-request-id" in error.response.headers
            return error.response.status_code if has_id else 0, None

    return asyncio.run(go())


def test_websocket_without_a_key_is_refused(keyed: Running) -> None:
    assert handshake(keyed)[0] == 401
    assert handshake(keyed, subprotocols=["vivace", "vivace-key.d3Jvbmc"])[0] == 401
    assert handshake(keyed, additional_headers={"authorization": "Bearer "})[0] == 401
    assert handshake(keyed, additional_headers={"authorization": f"Bearer {KEY}"})[0] == 101
    assert handshake(keyed, additional_headers={"xi-api-key": KEY})[0] == 101


def test_websocket_with_an_unknown_path_is_404(server: Running) -> None:
    assert handshake(server, "/v1/nowhere")[0] == 404
    head = "GET /v1/nowhere HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
    keys = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    answer = talk(server.port, f"{head}Upgrade: websocket\r\n{keys}\r\n".encode()).decode()
    error = json.loads(answer.partition("\r\n\r\n")[2])["error"]
    assert error["code"] == "route_not_found"
    assert "'/v1/nowhere'" in error["message"]


def test_plain_request_to_a_websocket_route_is_426(http: httpx.Client) -> None:
    for path in ("/v1/realtime", "/v1/text-to-speech/alloy/stream-input"):
        answer = http.get(path, headers={"xi-api-key": KEY})
        assert (answer.status_code, answer.headers["upgrade"]) == (426, "websocket")
        assert answer.json()["error"]["code"] == "websocket_needed"


def test_invalid_handshake_gets_an_openai_error(server: Running) -> None:
    head = "GET /v1/realtime HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
    answer = talk(server.port, f"{head}Upgrade: websocket\r\n\r\n".encode())
    head, _, body = answer.decode().partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 400")
    assert re.search(r"(?i)\nx-request-id: req_[0-9a-f]{24}\b", head)
    assert re.search(r"(?i)\ncontent-type: application/json\b", head)
    assert json.loads(body)["error"]["code"] == "invalid_handshake"


def test_websocket_key_may_be_a_subprotocol(keyed: Running) -> None:
    token = base64.urlsafe_b64encode(KEY.encode()).decode().rstrip("=")
    offered = ["vivace", f"vivace-key.{token}"]
    assert handshake(keyed, subprotocols=offered) == (101, "vivace")
    offered = ["realtime", "openai-insecure-api-key.another"]
    assert handshake(keyed, subprotocols=offered) == (101, "realtime")


# -- hosts and origins -----------------------------------------------------------------------

HOSTS = {
    "127.0.0.1": 200,
    "127.0.0.1:8000": 200,
    "[::1]:8000": 200,
    "192.168.1.7": 200,
    "localhost": 200,
    "LOCALHOST:1": 200,
    "vivace.localhost": 200,
    "evil.example": 403,
    "localhost.evil.example": 403,
    "127.0.0.1.evil.example": 403,
    "evillocalhost": 403,
    "evil.example:8000": 403,
    "localhost@evil.example": 400,
    "evil.example/localhost": 400,
    "local host": 400,
    "[::1": 400,
}


@pytest.mark.parametrize(("host", "status"), HOSTS.items())
def test_host_without_keys_must_be_an_address_or_localhost(
    client: httpx.Client, host: str, status: int
) -> None:
    for path in ("/v1/models", "/health/live"):
        assert client.get(path, headers={"host": host}).status_code == status


ORIGINS = {
    "http://localhost:8000": 200,
    "https://localhost:8000": 200,
    "http://localhost": 403,
    "http://localhost:8001": 403,
    "http://evil.example": 403,
    "null": 403,
    "http://localhost:8000.evil.example": 403,
    "file://": 403,
    "http://[": 403,
    "": 403,
}


@pytest.mark.parametrize(("origin", "status"), ORIGINS.items())
def test_request_of_a_foreign_origin_is_refused(
    client: httpx.Client, server: Running, origin: str, status: int
) -> None:
    headers = {"host": "localhost:8000", "origin": origin}
    answer = client.get("/v1/models", headers=headers)
    assert answer.status_code == status
    assert "access-control-allow-origin" not in answer.headers
    preflight = {"access-control-request-method": "POST", **headers}
    answer = client.options("/v1/audio/speech", headers=preflight)
    assert "access-control-allow-origin" not in answer.headers


def test_websocket_of_a_foreign_origin_is_refused(server: Running) -> None:
    assert handshake(server, origin="http://evil.example")[0] == 403
    assert handshake(server, origin=server.url)[0] == 101
    assert handshake(server, additional_headers={"Host": "evil.example"})[0] in (400, 403)


def test_allowed_origin_gets_cors_headers_and_needs_the_key(http: httpx.Client) -> None:
    headers = {"origin": ALLOWED, "access-control-request-method": "POST"}
    preflight = http.options("/v1/audio/speech", headers=headers)
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == ALLOWED
    assert "authorization" in preflight.headers["access-control-allow-headers"]
    asked = "authorization, x-stainless-lang"  # sent by the openai package in a browser
    headers["access-control-request-headers"] = asked
    preflight = http.options("/v1/audio/speech", headers=headers)
    assert preflight.headers["access-control-allow-headers"] == asked
    refused = http.get("/v1/models", headers={"origin": ALLOWED})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == ALLOWED  # readable for the page
    answer = http.get("/v1/models", headers={"origin": ALLOWED, "xi-api-key": KEY})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == ALLOWED
    assert http.options("/v1/audio/speech", headers={"origin": "http://x"}).status_code == 403


def test_any_host_with_a_key_is_served(http: httpx.Client) -> None:
    headers = {"host": "tts.example", "xi-api-key": KEY}
    assert http.get("/v1/models", headers=headers).status_code == 200


def test_root_path_in_the_url_is_optional(tmp_path: Path) -> None:
    """A proxy may remove the prefix or keep it. The page's URL is redirected to end in a slash."""
    settings = ServeSettings(port=0, voices=tmp_path, api_keys=KEYS, root_path="/a/tts")
    with running(settings, ScriptedSpeech().load) as server, httpx.Client(timeout=60) as http:
        for path in ("/", "/a/tts/", "/page/app.js", "/a/tts/page/app.js", "/a/tts/health/ready"):
            assert http.get(f"{server.url}{path}").status_code == 200
        bare = http.get(f"{server.url}/a/tts")
        assert (bare.status_code, bare.headers["location"]) == (307, "tts/")
        for path in ("/v1/models", "/a/tts/v1/models", "/a/tts/v1/models/", "/a/ttsv1/models"):
            assert http.get(f"{server.url}{path}").status_code == 401
            status = http.get(f"{server.url}{path}", headers={"xi-api-key": KEY}).status_code
            assert status == (404 if "ttsv1" in path else 200)


# -- lists, rates, ids -----------------------------------------------------------------------


def test_public_lists_setting_opens_only_the_lists(tmp_path: Path) -> None:
    settings = ServeSettings(
        port=0, voices=tmp_path, api_keys=KEYS, public_lists=True, max_requests_per_minute=20
    )
    with running(settings, ScriptedSpeech().load) as server, httpx.Client(timeout=60) as http:
        for path in ("/v1/models", "/v1/models/vivace", "/v1/audio/models", "/v1/audio/voices"):
            assert http.get(f"{server.url}{path}").status_code == 200
        for method, path in (("POST", "/v1/audio/voices"), ("GET", "/metrics")):
            assert http.request(method, f"{server.url}{path}").status_code == 401
        headers = {"host": "evil.example"}
        assert http.get(f"{server.url}/v1/models", headers=headers).status_code == 403
        check_rate(http, server)


def check_rate(http: httpx.Client, server: Running) -> None:
    """Twenty requests per key are served at once; the next gets a 429 with a retry time."""
    headers = {"xi-api-key": KEY}
    answers = [http.get(f"{server.url}/v1/", headers=headers) for _ in range(40)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert [answer.status_code for answer in answers[:20]] == [200] * 20
    assert refused
    assert 1 <= int(refused[0].headers["retry-after"]) <= 4
    assert int(refused[0].headers["retry-after-ms"]) <= 4_000
    assert http.get(f"{server.url}/v1/", headers={"xi-api-key": "another"}).status_code == 200


def test_request_id_of_the_client_is_kept_if_it_is_safe(client: httpx.Client) -> None:
    for path in ("/v1/models", "/nowhere", "/health/live"):
        assert client.get(path, headers={"x-request-id": "a.b-c_1"}).headers["x-request-id"] == (
            "a.b-c_1"
        )
        for bad in ("a b", "x" * 65, 'a"b', ""):
            given = client.get(path, headers={"x-request-id": bad}).headers["x-request-id"]
            assert re.fullmatch(r"req_[0-9a-f]{24}", given)
