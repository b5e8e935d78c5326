"""Health, metrics and the prewarm route."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vivace._version import __version__
from vivace.serve.context import ServeContext


def routes(context: ServeContext) -> APIRouter:
    router = APIRouter()

    @router.get("/health")
    @router.get("/health/live")
    async def live() -> Response:
        """200 while no model hangs in its backend, or 503."""
        is_live = context.models.is_live
        return JSONResponse({"status": "live" if is_live else "hung"}, 200 if is_live else 503)

    @router.get("/health/ready")
    async def ready() -> Response:
        """200 if the server can take requests; 503 while it loads, drains or is full for long."""
        if context.streams.draining.is_set():
            return JSONResponse({"status": "draining"}, 503)
        if not context.models.is_ready:
            return JSONResponse({"status": "loading"}, 503)
        if context.models.is_full:
            return JSONResponse({"status": "full"}, 503)
        return JSONResponse({"status": "ready"})

    @router.get("/v1")
    async def prewarm() -> Response:
        """A cheap response for clients that open their connection early."""
        return JSONResponse({"object": "server", "name": "vivace", "version": __version__})

    @router.get("/metrics")
    async def metrics(request: Request) -> Response:
        """Metrics in Prometheus' text format, or in OpenMetrics if `Accept` names it."""
        content, content_type = context.metrics.render(request.headers.get("accept", ""))
        return Response(content, headers={"content-type": content_type})

    return router
