"""A worker: HTTP, WebSockets and Wyoming over the models of the engine's process."""

from __future__ import annotations

import asyncio

from vivace.errors import TTSError
from vivace.serve.context import ServeContext
from vivace.serve.garbage_collection import collect_less_often
from vivace.serve.observability.logs import log_to_stderr, show_events
from vivace.serve.observability.metrics import Metrics
from vivace.serve.processes.control import FAILED, Assignment, ControlChannel, Values
from vivace.serve.processes.remote_models import RemoteLock, RemoteModels
from vivace.serve.processes.shared_counts import SharedCounts, WorkerCounts
from vivace.serve.processes.shared_metrics import ServerMetrics
from vivace.serve.server import Server

PUBLISH_S = 0.5  # between two publications of gauges


def run_worker(assignment: Assignment, control: ControlChannel) -> int:
    settings = assignment.settings
    log_to_stderr(settings.log_format)
    show_events(is_quiet=settings.log_format == "text" and not settings.verbose)
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(_serve(assignment, control))
        return 0
    except TTSError as error:
        control.send(failed=str(error), error=type(error).__name__)
        return FAILED
    finally:
        loop.close()


async def _serve(assignment: Assignment, control: ControlChannel) -> None:
    context = _create_context(assignment)
    server = Server(context)
    loop = asyncio.get_running_loop()

    def on_command(command: Values) -> None:
        loop.call_soon_threadsafe(server.stop, command["stop"])

    def on_ready(url: str) -> None:
        collect_less_often()
        show_events()
        control.send(ready=url, wyoming=server.wyoming_url)

    server.on_drain = lambda num_streams, limit_s, number: control.send(draining=num_streams)
    server.on_cut = lambda num_streams: control.send(cut=num_streams)
    control.watch(on_command)
    publishing = loop.create_task(_publish(context.metrics))
    try:
        await server.serve(on_ready)
    finally:
        publishing.cancel()


def _create_context(assignment: Assignment) -> ServeContext:
    settings, worker = assignment.settings, assignment.worker
    assert worker is not None
    num_models = len(settings.served_models)
    counts = SharedCounts(assignment.counts_file, num_models, assignment.num_workers)
    metrics = Metrics(ServerMetrics(assignment.metrics_folder, counts, assignment.supervisor))
    own = WorkerCounts(counts, worker)
    models = RemoteModels(settings, metrics, own, assignment.engine_path)
    return ServeContext.over(settings, models, metrics, RemoteLock(models.holder, "enrolment"), own)


async def _publish(metrics: Metrics) -> None:
    while True:
        metrics.publish()
        await asyncio.sleep(PUBLISH_S)
