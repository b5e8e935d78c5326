"""Assembles the application: all routers over one context, and errors in OpenAI's format.

A module with routes defines `routes(context) -> APIRouter` and is listed in `ROUTES`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import partial

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route, WebSocketRoute

from vivace._version import __version__
from vivace.errors import TTSError
from vivace.serve import sockets
from vivace.serve.context import ServeContext
from vivace.serve.errors import Failure, describe
from vivace.serve.http.middleware import Middleware
from vivace.serve.input.validation import violated_rule
from vivace.serve.page import page
from vivace.serve.routes import docs, elevenlabs, encode, enrol, health, kokoro, lists, speech
from vivace.serve.routes.openapi import describe_api
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
        message = f"{param}: {violated_rule(first)}"
        return Failure(400, message, "invalid_request", param).response()
    if isinstance(error, HTTPException):
        return _respond_without_route(request, error.status_code)
    return describe(error).response()


def _respond_without_route(request: Request, status: int) -> Response:
    """The response to a request that matches no route, or routes but not their methods."""
    path = request.scope["path"]
    message = f"no route {shown(f'{request.method} {path}')}"
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    if status == 405:
        allowed = ", ".join(_allowed_methods(request, routes))
        response = Failure(status, f"{message}; use {allowed}", "method_not_allowed").response()
        response.headers["allow"] = allowed
        return response
    near = get_close_matches(path[:MAX_SHOWN], [route.path for route in routes], 1, cutoff=0.8)
    hint = f"did you mean {near[0]}?" if near else "GET /docs describes all routes"
    return Failure(status, f"{message}; {hint}", "route_not_found").response()


def _allowed_methods(request: Request, routes: Iterable[Route]) -> list[str]:
    """The methods of all routes of the path. The exception names only those of the first."""
    matching = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    methods = {method for route in matching for method in route.methods or ()}
    return sorted(methods | {"HEAD"} if "GET" in methods else methods)  # see `Middleware`
