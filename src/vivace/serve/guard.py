"""The middleware around every route: request ids, who may ask, from where, and how much.

Plain ASGI, so that a disconnect reaches the route. The path is `scope["path"]`, which no header
can change. Whatever is not public is refused without a key, WebSockets included.

A browser cannot give a socket headers, so it offers two subprotocols: `vivace`, which is the one
accepted, and `vivace-key.` with the key in base64url (without padding). OpenAI's
`openai-insecure-api-key.KEY` beside `realtime` is taken too.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Mapping
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vivace.serve.access import Access, route_path
from vivace.serve.admission import SPEECH_PATH
from vivace.serve.context import ServeContext
from vivace.serve.errors import Failure, RefusedError, describe
from vivace.serve.logs import FIELDS
from vivace.serve.otel import RequestTrace
from vivace.serve.streams import shutting_down

log = logging.getLogger(__name__)

CROWDED = "vivace_crowded"  # of a connection's state: there are too many, or of its address
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
SUBPROTOCOLS = ("vivace", "realtime")  # that may be accepted; a key never is
EXPOSED = (
    "x-request-id, retry-after, retry-after-ms, content-type, x-vivace-ignored, x-vivace-skipped"
)
CORS_METHODS = "GET, POST, DELETE, OPTIONS"
CORS_HEADERS = "authorization, content-type, xi-api-key, x-request-id"
HEADER_NAMES = re.compile(r"[A-Za-z0-9_, -]{1,2000}")
MAX_CORS_S = 600
MAX_HEADER_BYTES = 32 * 1024
LEFT = 499  # in the log: the client left before an answer


class Guard:
    """`sends_request_id`: false behind a proxy that adds `x-request-id` to responses itself."""

    def __init__(
        self, app: ASGIApp, context: ServeContext, *, sends_request_id: bool = True
    ) -> None:
        self._app, self._context, self._sends_request_id = app, context, sends_request_id
        self._access = Access(context.settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        scope = self._settled(scope)
        headers, traces = read_headers(scope), self._context.streams.traces
        if traces is None:
            await self._attend(self._visit(scope, send, headers), scope, receive)
            return
        with traces.request(scope.get("method", "WS")[:8], headers) as trace:
            await self._attend(self._visit(scope, send, headers, trace), scope, receive)

    def _visit(
        self,
        scope: Scope,
        send: Send,
        headers: Mapping[str, str],
        trace: RequestTrace | None = None,
    ) -> Visit:
        visit = Visit(self._context, scope, send, headers, trace)
        visit.sends_request_id = self._sends_request_id or scope["type"] == "websocket"
        return visit

    async def _attend(self, visit: Visit, scope: Scope, receive: Receive) -> None:
        try:
            self._check_frame(scope, visit.headers)
            visit.origin = self._access.check_origin(visit.headers)
            self._access.check(scope, visit.headers, visit.origin)
            self._check_room(visit, scope)
            if visit.is_preflight:
                headers = _preflight_headers(visit.headers)
                await visit.answer(Response(status_code=204, headers=headers), receive)
            elif scope["path"] == scope["root_path"]:  # the page's addresses are relative
                there = {"location": f"{scope['root_path'].rpartition('/')[2]}/"}
                await visit.answer(Response(status_code=307, headers=there), receive)
            else:
                await self._app(scope, self._bounded(receive), visit.send)
        except asyncio.CancelledError:  # the server ends; who has no answer yet hears so
            if scope["type"] == "http" and not visit.is_answered:
                await visit.fail(shutting_down(), receive)
            raise
        except ClientDisconnect:
            log.debug("%s left before its body had come", visit.request_id)
        except Exception as error:
            await visit.fail(error, receive)
        finally:
            visit.report()

    def _settled(self, scope: Scope) -> Scope:
        """With the proxy's sub-path; HEAD as a GET, whose body uvicorn leaves out; and without a
        slash at the end, where many base URLs have one."""
        scope = {**scope, "root_path": self._context.settings.root_path}
        if scope.get("method") == "HEAD":
            scope["method"] = "GET"
        if route_path(scope) not in ("/", "//") and scope["path"].endswith("/"):
            scope["path"] = scope["path"][:-1]
        return scope

    def _check_frame(self, scope: Scope, headers: Mapping[str, str]) -> None:
        if scope.get("state", {}).get(CROWDED) and not route_path(scope).startswith("/health"):
            raise RefusedError(
                "too many connections are open; try again", status=503, code="crowded", retry_s=1.0
            )
        if scope.get("http_version", "1.1") not in ("1.0", "1.1"):
            raise RefusedError("HTTP/1.1 is spoken here", code="invalid_http")
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
            raise RefusedError("the headers are too long", status=431, code="headers_too_large")
        check_encoding(scope)
        declared = headers.get("content-length", "0")
        if not declared.isdecimal():
            raise RefusedError("content-length is a number", code="invalid_http")
        if len(declared) > 18 or int(declared) > self._context.settings.max_body_bytes:
            raise self._too_large()

    def _check_room(self, visit: Visit, scope: Scope) -> None:
        """Refuse speech that would wait too long before its body is read and routed.

        Routes admit requests themselves. This check only makes most refusals cheap.
        """
        if scope.get("method") == "POST" and route_path(scope) == SPEECH_PATH:
            visit.route = SPEECH_PATH
            self._context.streams.check_open()
            self._context.admission.check()

    def _bounded(self, receive: Receive) -> Receive:
        """The body is counted as it comes: its length may be a lie, or chunked."""
        num_bytes = 0

        async def bounded() -> Message:
            nonlocal num_bytes
            message = await receive()
            if message["type"] == "http.request":
                num_bytes += len(message.get("body", b""))
                if num_bytes > self._context.settings.max_body_bytes:
                    raise self._too_large()
            return message

        return bounded

    def _too_large(self) -> RefusedError:
        limit = self._context.settings.max_body_bytes
        return RefusedError(
            f"the body has more than {limit:,} bytes", status=413, code="body_too_large"
        )


class Visit:
    """One request or socket on its way through: its id, its answer, its line in the log."""

    def __init__(
        self,
        context: ServeContext,
        scope: Scope,
        send: Send,
        headers: Mapping[str, str],
        trace: RequestTrace | None = None,
    ) -> None:
        self._context, self._scope, self._send, self._trace = context, scope, send, trace
        self.headers = headers
        self.origin: str | None = None  # of an allowed page elsewhere, which hears so
        self.sends_request_id = True
        self.route = "-"  # of a request that is answered before it is routed
        self.request_id = new_request_id(scope)
        scope.setdefault("state", {})["request_id"] = self.request_id
        self._began = time.perf_counter()
        self._status = 0  # 0: no answer has begun

    @property
    def is_answered(self) -> bool:
        return bool(self._status)

    @property
    def is_preflight(self) -> bool:
        is_asked = "access-control-request-method" in self.headers
        return bool(self._scope.get("method") == "OPTIONS" and is_asked)

    async def send(self, message: Message) -> None:
        """With our headers, and with the subprotocol that a browser insists on."""
        kind = message["type"]
        if kind == "websocket.close" and not self._status:  # no route took the handshake
            await Failure(404, "Not Found").response()(self._scope, _nothing, self.send)
            return
        if kind in ("http.response.start", "websocket.accept", "websocket.http.response.start"):
            self._status = message.get("status", 101)
            headers = [*message.get("headers", []), *self._own_headers()]
            message = {**message, "headers": headers}
            if kind == "websocket.accept" and not message.get("subprotocol"):
                offered = self._scope.get("subprotocols", [])
                message["subprotocol"] = next((p for p in SUBPROTOCOLS if p in offered), None)
        await self._send(message)

    async def answer(self, response: Response, receive: Receive) -> None:
        """To a handshake too: Starlette's responses know how to refuse one."""
        await response(self._scope, receive, self.send)

    async def fail(self, error: Exception, receive: Receive) -> None:
        """Before an answer has begun it is the error's; after that the connection is broken off."""
        if self._status:
            if not isinstance(error, RefusedError):
                log.warning("%s broke off: %s", self.request_id, type(error).__name__)
            raise error
        await self.answer(describe(error).response(), receive)

    def report(self) -> None:
        """One line a request, without anything that was said."""
        route = getattr(self._scope.get("route"), "path", self.route)
        status = self._status or LEFT
        seconds = time.perf_counter() - self._began
        self._context.metrics.count_request(route, status, seconds)
        level = logging.DEBUG if route.startswith("/health") else logging.INFO
        method = self._scope.get("method", "WS")[:8]
        fields = {"request_id": self.request_id, "method": method, "route": route}
        fields |= {"status": status, "seconds": round(seconds, 6)}
        line = (self.request_id, method, route, status, seconds)
        log.log(level, "%s %s %s %d %.3fs", *line, extra={FIELDS: fields})
        if self._trace is not None:
            self._trace.end(route, status, self.request_id)

    def _own_headers(self) -> list[tuple[bytes, bytes]]:
        headers = [(b"x-content-type-options", b"nosniff")]
        if self.sends_request_id:
            headers += [(b"x-request-id", self.request_id.encode())]
        if self.origin is not None:
            headers += [
                (b"access-control-allow-origin", self.origin.encode("latin-1")),
                (b"access-control-expose-headers", EXPOSED.encode()),
                (b"vary", b"origin"),
            ]
        return headers


async def _nothing() -> Message:
    return {"type": "websocket.disconnect"}


def check_encoding(scope: Mapping[str, Any]) -> None:
    """Raise a RefusedError with status 415 for a body with a content coding, such as gzip."""
    for name, value in scope["headers"]:
        coding = value.decode("latin-1").strip().lower()
        if name == b"content-encoding" and coding not in ("", "identity"):
            raise RefusedError(
                f"content-encoding {coding[:80]!r} is not supported; send the body uncompressed",
                status=415,
                code="unsupported_encoding",
            )


def read_headers(scope: Mapping[str, Any]) -> dict[str, str]:
    """The last of each name; names are lower-case."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def new_request_id(scope: Mapping[str, Any]) -> str:
    """The client's own where it is harmless, else a fresh one."""
    given = read_headers(scope).get("x-request-id", "")
    return given if REQUEST_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"


def _preflight_headers(asked: Mapping[str, str]) -> dict[str, str]:
    """To an origin that is allowed; clients in browsers send headers of their own."""
    names = asked.get("access-control-request-headers", "")
    return {
        "access-control-allow-methods": CORS_METHODS,
        "access-control-allow-headers": names if HEADER_NAMES.fullmatch(names) else CORS_HEADERS,
        "access-control-max-age": str(MAX_CORS_S),
    }
