"""Health, metrics and the prewarm route."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import JSONResponse, PlainTextResponse, Response

from vivace._version import __version__
from vivace.serve.context import ServeContext

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def routes(context: ServeContext) -> APIRouter:
    router = APIRouter()

    @router.get("/health")
    @router.get("/health/live")
    async def live() -> Response:
        """The process answers and no model hangs in its backend; else 503."""
        is_live = context.models.is_live
        return JSONResponse({"status": "live" if is_live else "hung"}, 200 if is_live else 503)

    @router.get("/health/ready")
    async def ready() -> Response:
        """Every model was probed, no queue was full for long, and no drain; else 503."""
        if context.streams.draining.is_set():
            return JSONResponse({"status": "draining"}, 503)
        if not context.models.is_ready:
            return JSONResponse({"status": "loading"}, 503)
        if context.models.is_full:
            return JSONResponse({"status": "full"}, 503)
        return JSONResponse({"status": "ready"})

    @router.get("/v1")
    async def prewarm() -> Response:
        """For clients that open a connection before they need it."""
        return JSONResponse({"object": "server", "name": "vivace", "version": __version__})

    @router.get("/metrics")
    async def metrics() -> Response:
        """Prometheus' text format."""
        return PlainTextResponse(context.metrics.render(), media_type=METRICS_TYPE)

    return router
