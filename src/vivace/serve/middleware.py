"""The middleware around every route: request ids, access control, size limits and CORS.

It is plain ASGI, so that a disconnect reaches the route. Access depends on `scope["path"]`, which
no header can change. Without a valid key only public paths are served, WebSockets included.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vivace.serve.access import Access, route_path
from vivace.serve.admission import SPEECH_PATH
from vivace.serve.context import ServeContext
from vivace.serve.errors import RefusedError
from vivace.serve.exchange import Exchange, read_headers
from vivace.serve.otel import RequestTrace
from vivace.serve.streams import shutting_down

log = logging.getLogger(__name__)

OVER_LIMIT = "vivace_over_limit"  # connection state: beyond a limit on connections
CORS_METHODS = "GET, POST, DELETE, OPTIONS"
CORS_HEADERS = "authorization, content-type, xi-api-key, x-request-id"
HEADER_NAMES = re.compile(r"[A-Za-z0-9_, -]{1,2000}")
MAX_CORS_AGE_S = 600
MAX_HEADER_BYTES = 32 * 1024
MAX_LENGTH_DIGITS = 18


class Middleware:
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
        scope = self._normalized(scope)
        headers, sends_id = read_headers(scope), self._sends_request_id
        with self._traced(scope, headers) as trace:
            exchange = Exchange(
                self._context.metrics,
                scope,
                send,
                headers,
                trace=trace,
                sends_request_id=sends_id or scope["type"] == "websocket",
            )
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
            log.debug("%s: the client left before its body was complete", exchange.request_id)
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
