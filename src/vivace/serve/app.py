"""Assembles the application: all routers over one context, and errors in OpenAI's format.

A module with routes defines `routes(context) -> APIRouter` and is listed in `ROUTES`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute

from vivace._version import __version__
from vivace.errors import TTSError
from vivace.serve import docs, elevenlabs, encode, enrol, health, kokoro, lists, sockets, speech
from vivace.serve.context import ServeContext
from vivace.serve.errors import Failure, describe
from vivace.serve.middleware import Middleware
from vivace.serve.page import page
from vivace.serve.schema import describe_api
from vivace.speech import MAX_SHOWN, shown

ROUTES: tuple[Callable[[ServeContext], APIRouter], ...] = (
    health.routes,
    docs.routes,
    lists.routes,
    enrol.routes,
    speech.routes,
    encode.routes,
    elevenlabs.routes,
    kokoro.routes,
    sockets.routes,
    page.routes,
)
# FastAPI replaces the process's warning filters for a moment while it reads a route's parameters.
# If two threads do so at once, the filters stay changed.
ROUTES_LOCK = threading.Lock()


def create_app(context: ServeContext, *, sends_request_id: bool = True) -> FastAPI:
    """Return all routes behind the middleware. The caller starts the models.

    `sends_request_id`: false behind a proxy that adds `x-request-id` to responses itself.
    """
    app = FastAPI(
        title="Vivace",
        version=__version__,
        docs_url=None,  # FastAPI's page loads a CDN
        redoc_url=None,
        redirect_slashes=False,  # redirects name a scheme and host that a proxy may have changed
    )
    with ROUTES_LOCK:
        for routes in ROUTES:  # `include_router` would read them again at the first request
            app.router.routes.extend(routes(context).routes)
    for route in app.routes:
        if isinstance(route, (Route, WebSocketRoute)):
            status = 200 if isinstance(route, Route) else 101
            context.metrics.requests.labels(route.path, status)  # the series starts at 0
            context.metrics.request_seconds.labels(route.path)
    for kind in (TTSError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _respond)
    app.add_middleware(Middleware, context=context, sends_request_id=sends_request_id)
    app.openapi = partial(describe_api, app)  # type: ignore[method-assign]
    return app


async def _respond(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        param = ".".join(str(part) for part in first["loc"][1:])
        text = f"{first['msg'][:1].lower()}{first['msg'][1:]}"
        message = f"{param}: {text}, not {shown(first['input'])}"
        return Failure(400, message, "invalid_request", param).response()
    if isinstance(error, HTTPException):
        response = _describe_routing(request, error).response()
        response.headers.update(error.headers or {})
        return response
    return describe(error).response()


def _describe_routing(request: Request, error: HTTPException) -> Failure:
    """The failure of a request that matches no route, or a route but not its method."""
    path, status = request.scope["path"], error.status_code
    message = f"no route {shown(f'{request.method} {path}')}"
    if status == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return Failure(status, f"{message}; use {allowed}", "method_not_allowed")
    known = [route.path for route in request.app.routes if isinstance(route, Route)]
    near = get_close_matches(path[:MAX_SHOWN], known, 1, cutoff=0.8)
    hint = f"did you mean {near[0]}?" if near else "GET /docs describes all routes"
    return Failure(status, f"{message}; {hint}", "route_not_found")
