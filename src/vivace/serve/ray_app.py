"""The server as a Ray Serve application: `serve run vivace.serve.ray_app:app model=… replicas=2`.

Every replica is the application of `vivace serve` over models of its own. Ray's proxy listens,
sends each request to a replica with a free place, and replaces lost replicas.
"""

from __future__ import annotations

import os
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve
from ray.serve.config import AutoscalingConfig, BackpressureConfig

from vivace.serve.context import ServeContext
from vivace.serve.ray_replica import DEFAULTS, DeploymentScale, Replica, read_arguments
from vivace.serve.setting_sources import resolve_settings

RETRY_S = 1.0


class RayReplica:
    async def __init__(self, options: dict[str, Any], max_ongoing: int) -> None:  # type: ignore[misc]
        self._replica: Replica | None = None
        settings = resolve_settings(
            options, os.environ, defaults={**DEFAULTS, "host": _proxy_host()}
        )
        replica = Replica(ServeContext.create(settings))
        self._app = await replica.start(_is_stopping, max_ongoing)
        self._replica = replica

    def __serve_build_asgi_app__(self) -> FastAPI:
        return self._app

    async def check_health(self) -> None:
        if self._replica is not None:
            self._replica.check()

    async def __del__(self) -> None:
        if self._replica is not None:
            await self._replica.close()


def app(options: dict[str, Any]) -> serve.Application:
    """Build the application from the arguments of `serve run` or `serve.yaml`."""
    scale, settings = read_arguments(options)
    ingress = serve.ingress()(RayReplica)
    return serve.deployment(ingress, **_options(scale)).bind(settings, scale.max_ongoing)


def _options(scale: DeploymentScale) -> dict[str, Any]:
    options: dict[str, Any] = {"num_replicas": scale.min_replicas}
    if scale.max_replicas > scale.min_replicas:
        autoscaling = AutoscalingConfig(
            min_replicas=scale.min_replicas,
            max_replicas=scale.max_replicas,
            target_ongoing_requests=scale.target_ongoing,
        )
        options = {"autoscaling_config": autoscaling}
    return options | {
        "name": "vivace",
        "health_check_period_s": 5,
        "ray_actor_options": {"num_cpus": scale.cpus, "num_gpus": scale.gpus},
        "max_ongoing_requests": scale.max_ongoing,
        "max_queued_requests": max(1, scale.max_queue),  # Ray has no 0
        "backpressure_config": BackpressureConfig(status_code=429, retry_after_s=RETRY_S),
        "graceful_shutdown_wait_loop_s": 0.5,
        "graceful_shutdown_timeout_s": scale.stop_timeout_s,
    }


def _proxy_host() -> str:
    """Return the address of Ray's proxies: a public address needs API keys."""
    client = serve.context._get_global_client()
    return str(client.http_config.host or "127.0.0.1")


def _is_stopping() -> bool:
    """Whether Ray waits for this replica's requests before it stops the replica.

    Ray notifies a replica only after that wait, and an idle socket would make Ray wait until its
    timeout. So this reads Ray's private flag; tests/serve/test_ray_app.py checks it.
    """
    worker = ray._private.worker.global_worker
    actor = worker.actors.get(worker.actor_id)
    return bool(actor is not None and actor._replica_impl._shutting_down)
