"""Health, metrics and the prewarm route."""

from __future__ import annotations

import time

from fastapi import APIRouter
from starlette.responses import JSONResponse, PlainTextResponse, Response

from vivace._version import __version__
from vivace.serve.context import ServeContext
from vivace.serve.models import Model

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
        """Every model was probed and the server does not drain; else 503."""
        if context.streams.draining.is_set():
            return JSONResponse({"status": "draining"}, 503)
        if not context.models.is_ready:
            return JSONResponse({"status": "loading"}, 503)
        return JSONResponse({"status": "ready"})

    @router.get("/v1")
    async def prewarm() -> Response:
        """For clients that open a connection before they need it."""
        return JSONResponse({"object": "server", "name": "vivace", "version": __version__})

    @router.get("/metrics")
    async def metrics() -> Response:
        """Prometheus' text format."""
        loads = {model.name: model.tts.engine.capacity() for model in context.models.loaded()}
        gauges = {
            "ready": {"": float(context.models.is_ready)},
            "active_streams": {"": float(context.streams.num_active)},
            "running_streams": {name: float(load.num_running) for name, load in loads.items()},
            "waiting_streams": {name: float(load.num_waiting) for name, load in loads.items()},
            "slots": {name: float(load.num_slots) for name, load in loads.items()},
            "max_queue": {name: float(load.max_queue) for name, load in loads.items()},
            "turn_age_seconds": {model.name: age_s(model) for model in context.models.loaded()},
        }
        return PlainTextResponse(context.metrics.render(gauges), media_type=METRICS_TYPE)

    return router


def age_s(model: Model) -> float:
    """How long the turn under way has taken; 0 while idle."""
    since = model.tts.engine.busy_since
    return 0.0 if since is None else time.perf_counter() - since
