"""The middleware around every route: request ids, logs, access control, size limits and CORS.

It is plain ASGI, so that a disconnect reaches the route. Access depends on `scope["path"]`, which
no header can change. Without a valid key only public paths are served, WebSockets included.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vivace.serve.context import ServeContext
from vivace.serve.errors import Failure, RefusedError, describe
from vivace.serve.http.access import Access, route_path
from vivace.serve.observability.logs import FIELDS
from vivace.serve.observability.metrics import Metrics
from vivace.serve.observability.traces import RequestTrace
from vivace.serve.streams.active import shutting_down
from vivace.serve.streams.admission import SPEECH_PATH
from vivace.speech import shown

log = logging.getLogger(__name__)

OVER_LIMIT = "vivace_over_limit"  # connection state: beyond a limit on connections
CORS_METHODS = "GET, POST, DELETE, OPTIONS"
CORS_HEADERS = "authorization, content-type, xi-api-key, x-request-id"
HEADER_NAMES = re.compile(r"[A-Za-z0-9_, -]{1,2000}")
MAX_CORS_AGE_S = 600
MAX_HEADER_BYTES = 32 * 1024
MAX_LENGTH_DIGITS = 18
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
SUBPROTOCOLS = ("vivace", "realtime")  # may be accepted; the subprotocol with the API key never is
EXPOSED_HEADERS = (
    "x-request-id, retry-after, retry-after-ms, content-type, x-vivace-ignored, x-vivace-skipped"
    ", x-vivace-provenance"
)
CLIENT_DISCONNECTED = 499  # status in logs and metrics if there was no response


class Middleware:
    """`sends_request_id`: false behind a proxy that adds `x-request-id` to responses itself."""

    def __init__(
        self, app: ASGIApp, context: ServeContext, *, sends_request_id: bool = True
    ) -> None:
        self._app, self._context, self._sends_request_id = app, context, sends_request_id
        self._access = Access(context.settings, context.peers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        scope = self._normalized(scope)
        sends_id = self._sends_request_id or scope["type"] == "websocket"
        exchange = Exchange(self._context.metrics, scope, send, sends_id=sends_id)
        with self._traced(scope, exchange.headers) as exchange.trace:
            await self._handle(exchange, scope, receive)

    def _traced(
        self, scope: Scope, headers: Mapping[str, str]
    ) -> AbstractContextManager[RequestTrace | None]:
        traces = self._context.streams.traces
        if traces is None:
            return nullcontext()
        return traces.request(scope.get("method", "WS")[:8], headers)

    async def _handle(self, exchange: Exchange, scope: Scope, receive: Receive) -> None:
        try:
            self._check_headers(scope, exchange.headers)
            exchange.origin = self._access.check_origin(exchange.headers)
            self._access.check(scope, exchange.headers, exchange.origin)
            self._check_admission(exchange, scope)
            if exchange.is_preflight:
                headers = _preflight_headers(exchange.headers)
                await exchange.respond(Response(status_code=204, headers=headers), receive)
            elif scope["path"] == scope["root_path"]:  # the page's addresses are relative
                target = {"location": f"{scope['root_path'].rpartition('/')[2]}/"}
                await exchange.respond(Response(status_code=307, headers=target), receive)
            else:
                await self._app(scope, self._limited(receive), exchange.send)
        except asyncio.CancelledError:  # the server stops
            if scope["type"] == "http" and not exchange.has_response:
                await exchange.fail(shutting_down(), receive)
            raise
        except ClientDisconnect:
            log.debug(
                "%s: the client disconnected before its body was complete", exchange.request_id
            )
        except Exception as error:
            await exchange.fail(error, receive)
        finally:
            exchange.report()

    def _normalized(self, scope: Scope) -> Scope:
        """Set the proxy's path prefix, turn HEAD into GET and remove a trailing slash.

        uvicorn omits the body of responses to HEAD. Many base URLs end with a slash.
        """
        scope = {**scope, "root_path": self._context.settings.root_path}
        if scope.get("method") == "HEAD":
            scope["method"] = "GET"
        if route_path(scope) not in ("/", "//") and scope["path"].endswith("/"):
            scope["path"] = scope["path"][:-1]
        return scope

    def _check_headers(self, scope: Scope, headers: Mapping[str, str]) -> None:
        if scope.get("state", {}).get(OVER_LIMIT) and not route_path(scope).startswith("/health"):
            raise RefusedError(
                "too many open connections; try again", status=503, code="crowded", retry_s=1.0
            )
        if scope.get("http_version", "1.1") not in ("1.0", "1.1"):
            raise RefusedError("Only HTTP/1.0 and HTTP/1.1 are supported.", code="invalid_http")
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
            raise RefusedError(
                f"the headers have more than {MAX_HEADER_BYTES:,} bytes",
                status=431,
                code="headers_too_large",
            )
        check_encoding(scope)
        length = headers.get("content-length", "0")
        if not length.isdecimal():
            raise RefusedError(
                f"content-length {length[:80]!r} is not a number", code="invalid_http"
            )
        max_bytes = self._context.settings.max_body_bytes
        if len(length) > MAX_LENGTH_DIGITS or int(length) > max_bytes:
            raise _too_large(max_bytes)

    def _check_admission(self, exchange: Exchange, scope: Scope) -> None:
        """Refuse speech that would wait too long, before its body is read and routed.

        Routes admit requests themselves. This check only makes most refusals cheap.
        """
        if scope.get("method") == "POST" and route_path(scope) == SPEECH_PATH:
            exchange.route = SPEECH_PATH
            self._context.streams.check_open()
            self._context.admission.check()

    def _limited(self, receive: Receive) -> Receive:
        """Count the bytes of the body: `content-length` may be absent or wrong."""
        num_bytes, max_bytes = 0, self._context.settings.max_body_bytes

        async def limited() -> Message:
            nonlocal num_bytes
            message = await receive()
            if message["type"] == "http.request":
                num_bytes += len(message.get("body", b""))
                if num_bytes > max_bytes:
                    raise _too_large(max_bytes)
            return message

        return limited


class Exchange:
    """One HTTP request or WebSocket: its id, its response and its log line."""

    def __init__(self, metrics: Metrics, scope: Scope, send: Send, *, sends_id: bool) -> None:
        self._metrics, self._scope, self._send, self._sends_id = metrics, scope, send, sends_id
        self.trace: RequestTrace | None = None
        self.headers = headers = read_headers(scope)
        self.origin: str | None = None  # an allowed origin other than the server's own
        self.route = "-"  # for the log, if the response precedes routing
        self.request_id = new_request_id(headers)
        scope.setdefault("state", {})["request_id"] = self.request_id
        self._began = time.perf_counter()
        self._status = 0  # 0: the response has not begun

    @property
    def has_response(self) -> bool:
        return bool(self._status)

    @property
    def is_preflight(self) -> bool:
        has_method = "access-control-request-method" in self.headers
        return bool(self._scope.get("method") == "OPTIONS" and has_method)

    async def send(self, message: Message) -> None:
        """Send an ASGI message; add the common headers and the subprotocol to the first one."""
        kind = message["type"]
        if kind == "websocket.close" and not self._status:  # no route accepted the handshake
            text = f"no WebSocket {shown(self._scope['path'])}; GET /docs describes all routes"
            response = Failure(404, text, "route_not_found").response()
            await response(self._scope, _receive_disconnect, self.send)
            return
        if kind in ("http.response.start", "websocket.accept", "websocket.http.response.start"):
            self._status = message.get("status", 101)
            headers = [*message.get("headers", []), *self._common_headers()]
            message = {**message, "headers": headers}
            if kind == "websocket.accept" and not message.get("subprotocol"):
                offered = self._scope.get("subprotocols", [])
                message["subprotocol"] = next((p for p in SUBPROTOCOLS if p in offered), None)
        await self._send(message)

    async def respond(self, response: Response, receive: Receive) -> None:
        """Send a response, also as the refusal of a WebSocket handshake."""
        await response(self._scope, receive, self.send)

    async def fail(self, error: Exception, receive: Receive) -> None:
        """Send an error response, or raise `error` to abort a response that has begun."""
        if self._status:
            if not isinstance(error, RefusedError):
                log.warning("%s: response aborted: %s", self.request_id, type(error).__name__)
            raise error
        await self.respond(describe(error).response(), receive)

    def report(self) -> None:
        """Count and log the request, without any of its text."""
        route = getattr(self._scope.get("route"), "path", self.route)
        status = self._status or CLIENT_DISCONNECTED
        seconds = time.perf_counter() - self._began
        self._metrics.requests.labels(route, status).inc()
        self._metrics.request_seconds.labels(route).observe(seconds)
        level = logging.DEBUG if route.startswith("/health") else logging.INFO
        method = self._scope.get("method", "WS")[:8]
        fields = {"request_id": self.request_id, "method": method, "route": route}
        fields |= {"status": status, "seconds": round(seconds, 6)}
        line = (self.request_id, method, route, status, seconds)
        log.log(level, "%s %s %s %d %.3fs", *line, extra={FIELDS: fields})
        if self.trace is not None:
            self.trace.end(route, status, self.request_id)

    def _common_headers(self) -> list[tuple[bytes, bytes]]:
        headers = [(b"x-content-type-options", b"nosniff")]
        if self._sends_id:
            headers += [(b"x-request-id", self.request_id.encode())]
        if self.origin is not None:
            headers += [
                (b"access-control-allow-origin", self.origin.encode("latin-1")),
                (b"access-control-expose-headers", EXPOSED_HEADERS.encode()),
                (b"vary", b"origin"),
            ]
        return headers


async def _receive_disconnect() -> Message:
    return {"type": "websocket.disconnect"}


def read_headers(scope: Mapping[str, Any]) -> dict[str, str]:
    """Return headers by lower-case name; of repeated headers the last one."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def new_request_id(headers: Mapping[str, str]) -> str:
    """Return the client's `x-request-id` if it is safe to log, or a new id."""
    given = headers.get("x-request-id", "")
    return given if REQUEST_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"


def _too_large(max_bytes: int) -> RefusedError:
    return RefusedError(
        f"the body has more than {max_bytes:,} bytes", status=413, code="body_too_large"
    )


def check_encoding(scope: Mapping[str, Any]) -> None:
    """Raise RefusedError with status 415 for a body with a content coding, such as gzip."""
    for name, value in scope["headers"]:
        coding = value.decode("latin-1").strip().lower()
        if name == b"content-encoding" and coding not in ("", "identity"):
            raise RefusedError(
                f"content-encoding {coding[:80]!r} is not supported; send the body uncompressed",
                status=415,
                code="unsupported_encoding",
            )


def _preflight_headers(requested: Mapping[str, str]) -> dict[str, str]:
    names = requested.get("access-control-request-headers", "")
    return {
        "access-control-allow-methods": CORS_METHODS,
        "access-control-allow-headers": names if HEADER_NAMES.fullmatch(names) else CORS_HEADERS,
        "access-control-max-age": str(MAX_CORS_AGE_S),
    }
