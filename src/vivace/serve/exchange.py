"""One HTTP request or WebSocket: its id, its response and its log line."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from vivace.serve.errors import Failure, RefusedError, describe
from vivace.serve.logs import FIELDS
from vivace.serve.metrics import Metrics
from vivace.serve.otel import RequestTrace

log = logging.getLogger(__name__)

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
SUBPROTOCOLS = ("vivace", "realtime")  # may be accepted; the subprotocol with the API key never is
EXPOSED_HEADERS = (
    "x-request-id, retry-after, retry-after-ms, content-type, x-vivace-ignored, x-vivace-skipped"
)
CLIENT_LEFT = 499  # status in logs and metrics if the client left before a response


class Exchange:
    def __init__(
        self,
        metrics: Metrics,
        scope: Scope,
        send: Send,
        headers: Mapping[str, str],
        *,
        trace: RequestTrace | None = None,
        sends_request_id: bool = True,
    ) -> None:
        self._metrics, self._scope, self._send, self._trace = metrics, scope, send, trace
        self._sends_request_id = sends_request_id
        self.headers = headers
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
            response = Failure(404, "Not Found").response()
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
        status = self._status or CLIENT_LEFT
        seconds = time.perf_counter() - self._began
        self._metrics.requests.labels(route, status).inc()
        self._metrics.request_seconds.labels(route).observe(seconds)
        level = logging.DEBUG if route.startswith("/health") else logging.INFO
        method = self._scope.get("method", "WS")[:8]
        fields = {"request_id": self.request_id, "method": method, "route": route}
        fields |= {"status": status, "seconds": round(seconds, 6)}
        line = (self.request_id, method, route, status, seconds)
        log.log(level, "%s %s %s %d %.3fs", *line, extra={FIELDS: fields})
        if self._trace is not None:
            self._trace.end(route, status, self.request_id)

    def _common_headers(self) -> list[tuple[bytes, bytes]]:
        headers = [(b"x-content-type-options", b"nosniff")]
        if self._sends_request_id:
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
