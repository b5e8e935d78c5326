"""A replica without Ray: arguments, health check and drain."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.scripted_tts import ScriptedSpeech
from vivace.backends.cuda_graph.slots.memory import DEFAULT_STREAMS
from vivace.backends.eager import MAX_STREAMS
from vivace.errors import EngineError, RequestError
from vivace.serve import ray_replica as module
from vivace.serve.context import ServeContext
from vivace.serve.ray_replica import (
    CPU_STREAMS,
    GPU_STREAMS,
    DeploymentScale,
    Replica,
    read_arguments,
)
from vivace.serve.settings import ServeSettings

LIMIT_S = 60.0


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VIVACE_MAX_STREAMS", "VIVACE_CONFIG", "VIVACE_API_KEY"):
        monkeypatch.delenv(name, raising=False)


# -- arguments -------------------------------------------------------------------------------


def test_command_line_and_yaml_arguments_are_equivalent() -> None:
    words = {"model": "a=vivace,b=vivace", "replicas": "2", "cpus": "0.5", "gpus": "0.25"}
    words |= {"max_streams": "16", "max_queue": "4", "drain_timeout": "9", "offline": "true"}
    values: dict[str, Any] = {"model": ["a=vivace", "b=vivace"], "replicas": 2, "cpus": 0.5}
    values |= {"gpus": 0.25, "max_streams": 16, "max_queue": 4, "drain_timeout": 9, "offline": True}
    scale, flags = read_arguments(words)
    assert scale == read_arguments(values)[0]
    assert scale == DeploymentScale(
        min_replicas=2, max_replicas=2, cpus=0.5, gpus=0.25,
        num_slots=32, max_queue=8, drain_timeout_s=9.0,
    )  # fmt: skip
    assert scale.max_ongoing == 40
    assert scale.target_ongoing == 24
    assert scale.stop_timeout_s > 9
    assert set(flags) == {"models", "max_streams", "max_queue", "drain_timeout_s", "offline"}


def test_default_arguments_are_one_replica_of_the_embedded_voice() -> None:
    scale, flags = read_arguments({"device": "cpu"})
    assert (scale.min_replicas, scale.max_replicas, scale.cpus, scale.gpus) == (1, 1, 1, 0)
    assert scale.num_slots == CPU_STREAMS == MAX_STREAMS
    assert read_arguments({"gpus": 1})[0].num_slots == GPU_STREAMS == DEFAULT_STREAMS
    assert read_arguments({"device": "cuda"})[0].gpus == 1
    assert flags == {"device": "cpu"}


def test_replica_range_enables_autoscaling() -> None:
    scale, _ = read_arguments({"replicas": "1-8", "max_streams": 1})
    assert (scale.min_replicas, scale.max_replicas, scale.target_ongoing) == (1, 8, 1)


def test_environment_variables_apply_to_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIVACE_MAX_STREAMS", "3")
    assert read_arguments({"max_queue": 0})[0].max_ongoing == 3


def test_api_key_variable_is_read_in_the_replica() -> None:
    _, flags = read_arguments({"api_key_env": "ONLY_IN_THE_POD"})
    assert flags == {"api_key_env": "ONLY_IN_THE_POD"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"replicas": "none"}, "replicas must be a number"),
        ({"replicas": 0}, "replicas must be a number"),
        ({"replicas": "3-2"}, "MIN-MAX"),
        ({"gpus": "half"}, "gpus must be a number"),
        ({"cpus": -1}, "cpus must be a number"),
        ({"modle": "vivace"}, "no setting named 'modle'"),
        ({"max_streams": "many"}, "max_streams cannot be 'many'"),
        ({"port": 9000}, "http_options"),
        ({"wyoming_port": 10200}, "wyoming_port is not a setting of a replica"),
    ],
)
def test_invalid_argument_error_names_the_argument(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read_arguments(arguments)


# -- a replica -------------------------------------------------------------------------------


@asynccontextmanager
async def started(
    backend: ScriptedSpeech, folder: Path, is_stopping: asyncio.Event | None = None
) -> AsyncIterator[tuple[Replica, httpx.AsyncClient]]:
    stopping = is_stopping or asyncio.Event()
    replica = Replica(ServeContext.create(ServeSettings(voices=folder), backend.load))
    app = await replica.start(stopping.is_set, max_ongoing=backend.max_streams)
    transport = httpx.ASGITransport(app)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield replica, client
    finally:
        await replica.close()


async def until(condition: Any) -> None:
    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(wait(), LIMIT_S)


def test_started_replica_speaks_and_is_healthy(tmp_path: Path) -> None:
    async def check() -> None:
        async with started(ScriptedSpeech(), tmp_path) as (replica, client):
            replica.check()
            assert (await client.get("/health/ready")).json() == {"status": "ready"}
            body = {"input": "Hi.", "response_format": "pcm"}
            spoken = await client.post("/v1/audio/speech", json=body)
            assert spoken.status_code == 200
            assert len(spoken.content) == 25 * 1_920 * 2

    asyncio.run(check())


@pytest.mark.parametrize("path", ["/health/ready", "/v1/audio/speech", "/nowhere"])
def test_response_through_a_proxy_that_adds_a_request_id_has_one(tmp_path: Path, path: str) -> None:
    """Ray's proxy creates an id, forwards it, and adds it to the response."""

    async def check() -> None:
        replica = Replica(
            ServeContext.create(ServeSettings(voices=tmp_path), ScriptedSpeech().load)
        )
        app = await replica.start(lambda: False, max_ongoing=4)

        async def proxy(scope: Any, receive: Any, send: Any) -> None:
            async def add(message: Any) -> None:
                if message["type"] == "http.response.start":
                    header = (b"X-Request-ID", b"of-the-proxy")
                    message = {**message, "headers": [*message["headers"], header]}
                await send(message)

            asked = [*scope["headers"], (b"x-request-id", b"of-the-proxy")]
            await app({**scope, "headers": asked}, receive, add)

        transport = httpx.ASGITransport(proxy)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            answer = await client.request("GET" if "health" in path else "POST", path)
        await replica.close()
        assert answer.headers.get_list("x-request-id") == ["of-the-proxy"]

    asyncio.run(check())


def test_replica_with_a_lost_model_reports_unhealthy(tmp_path: Path) -> None:
    async def check() -> None:
        async with started(ScriptedSpeech(), tmp_path) as (replica, _):
            replica.check()
            entry = replica.context.models._entries["vivace"]
            entry.is_broken = True
            with pytest.raises(EngineError, match="is being loaded again"):
                replica.check()
            entry.is_broken = False
            entry.is_full = True  # a busy replica is healthy
            replica.check()
            assert replica.context.models.recovery.on_lost is not None
            replica.context.models.recovery.on_lost(EngineError("it cannot be loaded again"))
            with pytest.raises(EngineError, match="cannot be loaded again"):
                replica.check()

    asyncio.run(check())


def test_stopping_replica_drains_and_stays_healthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROUTE_UPDATE_S", 0.0)

    async def check() -> None:
        stopping = asyncio.Event()
        async with started(ScriptedSpeech(), tmp_path, stopping) as (replica, client):
            streams = replica.context.streams
            assert not streams.draining.is_set()
            with streams.hold():
                stopping.set()
                await until(streams.draining.is_set)
                replica.check()
                assert (await client.get("/health/ready")).json() == {"status": "draining"}
                body = {"input": "Hi.", "response_format": "pcm"}
                late = await client.post("/v1/audio/speech", json=body)
                assert late.status_code == 503
                assert late.headers["retry-after"]
                assert replica._watching is not None
                assert not replica._watching.done()
            await asyncio.wait_for(replica._watching, LIMIT_S)

    asyncio.run(check())


def test_request_of_a_proxy_with_old_routes_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROUTE_UPDATE_S", 3_600.0)

    async def check() -> None:
        answers: list[bool] = []

        def is_stopping() -> bool:
            answers.append(True)
            return True

        replica = Replica(
            ServeContext.create(ServeSettings(voices=tmp_path), ScriptedSpeech().load)
        )
        app = await replica.start(is_stopping, max_ongoing=4)
        await until(lambda: answers)
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://127.0.0.1"
        ) as client:
            body = {"input": "Hi.", "response_format": "pcm"}
            assert (await client.post("/v1/audio/speech", json=body)).status_code == 200
        assert not replica.context.streams.draining.is_set()
        await replica.close()

    asyncio.run(check())


@pytest.mark.parametrize(("max_ongoing", "has_warning"), [(4, False), (1_000, True)])
def test_replica_with_too_few_places_logs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, max_ongoing: int, has_warning: bool
) -> None:
    async def check() -> None:
        settings = ServeSettings(voices=tmp_path)
        replica = Replica(ServeContext.create(settings, ScriptedSpeech(max_streams=4).load))
        await replica.start(lambda: False, max_ongoing)
        await replica.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(check())
    assert ("set max_streams" in caplog.text) is has_warning
