"""G13: everything reachable from outside: routes, sockets, hosts, origins and listeners.

The routes come from the router, so that new routes are tested too. The controls are a server
without the middleware, servers with a wrong check, and a process with an extra listener.
`tests/serve/http/test_access.py` tests spellings of keys and paths.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from starlette.routing import BaseRoute, Route, WebSocketRoute

from tests.support.figures import record
from tests.support.raw_http import talk
from tests.support.scripted_tts import ScriptedSpeech
from tests.support.serving import Running, running
from vivace.serve import app
from vivace.serve.http import access
from vivace.serve.settings import ServeSettings

KEY = "s3cret"
PUBLIC = {"/", "/health", "/health/live", "/health/ready", "/favicon.ico"}
CREDENTIALS = {
    "none": [],
    "bad": ["authorization: Bearer wrong", "xi-api-key: wrong"],
    "empty": ["authorization: Bearer "],
    "key": [f"authorization: Bearer {KEY}"],
}
LOCAL = ("127.0.0.1:8000", "localhost", "[::1]:8000", "vivace.localhost", "10.0.0.7:8000")
FOREIGN = ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example")
INVALID = ("a@b", "127.0.0.1/health/live?", "x y", "[::1", "localhost:999999")
ORIGINS = ("", "http://localhost:8000", "http://evil.example", "null", "file://")


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = ServeSettings(port=0, voices=tmp_path_factory.mktemp("voices"), api_keys=(KEY,))
    with running(settings, ScriptedSpeech().load) as server:
        yield server


@pytest.fixture(scope="module")
def open_to_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = ServeSettings(port=0, voices=tmp_path_factory.mktemp("voices"))
    with running(settings, ScriptedSpeech().load) as server:
        yield server


def all_routes(routes: Iterable[BaseRoute]) -> Iterator[tuple[str, str]]:
    """Return method and path of every route, including sockets."""
    for route in routes:
        path = re.sub(r"\{[^}]*\}", "x", getattr(route, "path", ""))
        if isinstance(route, WebSocketRoute) or "WebSocket" in type(route).__name__:
            yield "SOCKET", path
        elif isinstance(route, Route) or getattr(route, "methods", None):
            for method in sorted(getattr(route, "methods", None) or {"GET"}):
                yield method, path
        inner = getattr(route, "original_router", None) or getattr(route, "router", None)
        yield from all_routes(getattr(inner or route, "routes", None) or [])


def ask(port: int, method: str, path: str, *headers: str) -> int:
    """Return the status; a socket is a GET with an upgrade."""
    sent = list(headers)
    if method == "SOCKET":
        method = "GET"
        sent += ["upgrade: websocket", "sec-websocket-version: 13"]
        sent += ["connection: upgrade", "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="]
    else:
        sent += ["connection: close", "content-length: 0"]
    if not any(each.lower().startswith("host:") for each in sent):
        sent.append("host: 127.0.0.1")
    head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{each}\r\n" for each in sent) + "\r\n"
    return read_status(port, head.encode("latin-1"))


def read_status(port: int, request: bytes) -> int:
    with socket.create_connection(("127.0.0.1", port), 60.0) as connection:
        connection.sendall(request)
        answer = b""
        while b"\r\n" not in answer and (part := connection.recv(65_536)):
            answer += part
    return int(answer.split(b" ", 2)[1]) if answer else 0


# -- keys ----------------------------------------------------------------------------------------


def find_open(server: Running) -> list[tuple[str, str, str]]:
    """Return routes that are open without a key, or closed with a key."""
    wrong = []
    for method, path in set(all_routes(server.server.app.routes)):
        is_public = method in ("GET", "HEAD") and (path in PUBLIC or path.startswith("/page/"))
        for name, headers in CREDENTIALS.items():
            status = ask(server.port, method, path, *headers)
            if (status == 401) != (name != "key" and not is_public):
                wrong.append((method, path, f"{name}: {status}"))
    return wrong


def test_every_route_and_socket_needs_the_key(keyed: Running) -> None:
    routes = set(all_routes(keyed.server.app.routes))
    sockets = {path for method, path in routes if method == "SOCKET"}
    assert len(sockets) >= 4
    assert {"/v1/audio/speech", "/metrics", "/v1/audio/voices"} <= {path for _, path in routes}
    assert find_open(keyed) == []
    record("G13 routes", routes=len(routes), sockets=len(sockets), credentials=len(CREDENTIALS))


def without_middleware(inner: object, **_: object) -> object:
    return inner


def test_control_server_without_middleware_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "Middleware", without_middleware)
    settings = ServeSettings(port=0, voices=tmp_path, api_keys=(KEY,))
    with running(settings, ScriptedSpeech().load) as server:
        found = find_open(server)
    assert {("GET", "/v1/models"), ("POST", "/v1/audio/speech"), ("SOCKET", "/v1/realtime")} <= {
        (method, path) for method, path, _ in found
    }


def test_control_middleware_with_a_path_prefix_check_is_detected(
    keyed: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A middleware that compares only the beginning of the path."""
    monkeypatch.setattr(access, "_is_public", lambda path: path.startswith(("/health", "/v1/m")))
    assert ("GET", "/v1/models", "none: 200") in find_open(keyed)


# -- hosts and origins ---------------------------------------------------------------------------


def expected_status(host: str, origin: str) -> set[int]:
    if host in INVALID:
        return {400, 403}  # refused by host, or first by origin
    is_own = origin == "" or origin.partition("://")[2] == host
    return {200, 101} if host in LOCAL and is_own else {403}


def find_wrong_statuses(server: Running) -> list[str]:
    """Return rows of host, origin and route with an unexpected status."""
    wrong = []
    for host, origin in itertools.product((*LOCAL, *FOREIGN, *INVALID), ORIGINS):
        headers = [f"host: {host}", *([f"origin: {origin}"] if origin else [])]
        for method, path in (("GET", "/v1/models"), ("SOCKET", "/v1/realtime")):
            status = ask(server.port, method, path, *headers)
            if status not in expected_status(host, origin):
                wrong.append(f"{method} {host} {origin}: {status}")
    return wrong


def test_foreign_hosts_and_origins_are_refused_on_every_route(open_to_all: Running) -> None:
    assert find_wrong_statuses(open_to_all) == []
    num_hosts = len((*LOCAL, *FOREIGN, *INVALID))
    record("G13 hosts and origins", rows=num_hosts * len(ORIGINS), ways_in=2, wrong=0)


def test_control_server_that_trusts_the_host_header_is_detected(
    open_to_all: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Origin and Host may agree although both are foreign (DNS rebinding)."""
    monkeypatch.setattr(access, "_is_local", lambda host: True)
    assert any("evil.example" in row for row in find_wrong_statuses(open_to_all))


# -- listeners -----------------------------------------------------------------------------------


def listeners(pid: int) -> set[tuple[str, int]]:
    """Return address and port of every listening TCP socket of the process."""
    inodes = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # just closed
            inodes.add(file.readlink().name.removeprefix("socket:[").removesuffix("]"))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                address, _, port = fields[1].partition(":")
                found.add((address, int(port, 16)))
    return found


@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="needs /proc")
def test_server_listens_only_on_its_declared_ports(tmp_path: Path) -> None:
    before = listeners(os.getpid())
    with running(ServeSettings(port=0, voices=tmp_path), ScriptedSpeech().load) as server:
        assert listeners(os.getpid()) - before == {("0100007F", server.port)}
        with socket.create_server(
            ("127.0.0.1", 0)
        ) as another:  # control: an extra listener is found
            found = listeners(os.getpid()) - before
            assert found == {("0100007F", server.port), ("0100007F", another.getsockname()[1])}
    assert listeners(os.getpid()) == before


def test_malformed_host_does_not_make_a_route_public(keyed: Running) -> None:
    """CVE-2026-48710: the path comes from the request line, not from the Host header."""
    for host in ("127.0.0.1/health/live?", "x/health", "a@b/health", "127.0.0.1#/health"):
        request = f"GET /v1/models HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
        answer = talk(keyed.port, request.encode())
        assert answer[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 401")
        assert "error" in json.loads(answer.partition(b"\r\n\r\n")[2])
