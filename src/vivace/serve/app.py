"""The application: routers over one context, errors in OpenAI's shape.

A module of routes exposes `routes(context) -> APIRouter` and is added to `ROUTES` below.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp

from vivace._version import __version__
from vivace.errors import TTSError
from vivace.serve import docs, elevenlabs, enrol, health, kokoro, lists, sockets, speech
from vivace.serve.context import ServeContext
from vivace.serve.errors import Failure, describe
from vivace.serve.guard import Guard
from vivace.serve.page import page
from vivace.serve.schema import describe_api

ROUTES: tuple[Callable[[ServeContext], APIRouter], ...] = (
    health.routes,
    docs.routes,
    lists.routes,
    enrol.routes,
    speech.routes,
    elevenlabs.routes,
    kokoro.routes,
    sockets.routes,
    page.routes,
)
# FastAPI sets the process's warning filters for a moment while it reads a route's parameters.
# Two threads doing so would leave them changed, and let through the warning that it hides.
READING_ROUTES = threading.Lock()


def create_app(context: ServeContext, *, sends_request_id: bool = True) -> FastAPI:
    """Every route behind the guard. The models are started by whoever runs the application.

    `sends_request_id`: false behind a proxy that adds `x-request-id` to responses itself.
    """
    app = FastAPI(
        title="Vivace",
        version=__version__,
        docs_url=None,  # FastAPI's page loads a CDN
        redoc_url=None,
        redirect_slashes=False,  # to a scheme and host that a proxy may have changed; see guard.py
    )
    with READING_ROUTES:
        for routes in ROUTES:  # `include_router` would read them again at the first request
            app.router.routes.extend(routes(context).routes)
    for route in app.routes:
        if isinstance(route, (Route, WebSocketRoute)):
            context.metrics.expose_route(route.path, 200 if isinstance(route, Route) else 101)
    app.add_exception_handler(TTSError, _answer)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_middleware(_guarded, context=context, sends_request_id=sends_request_id)
    app.openapi = partial(describe_api, app)  # type: ignore[method-assign]
    return app


def _guarded(app: ASGIApp, context: ServeContext, sends_request_id: bool) -> ASGIApp:
    return Guard(app, context, sends_request_id=sends_request_id)


async def _answer(request: Request, error: Exception) -> Response:
    return describe(error).response()


async def _answer_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    param = ".".join(str(part) for part in first["loc"][1:]) or None
    return Failure(
        400, f"{param or 'the body'}: {first['msg']}", "invalid_request", param
    ).response()


async def _answer_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    failure = Failure(error.status_code, str(error.detail), None)
    response = failure.response()
    response.headers.update(error.headers or {})
    return response
