"""Creating applications in several threads does not change the warning filters."""

from __future__ import annotations

import threading
import warnings

import httpx
import pytest
from fastapi import APIRouter

from tests.support.serving import Running
from vivace.serve import app
from vivace.serve.context import ServeContext
from vivace.serve.settings import ServeSettings


def test_applications_created_in_two_threads_read_routes_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = threading.Barrier(2)
    met: list[int] = []

    def routes(context: ServeContext) -> APIRouter:
        try:
            met.append(both.wait(0.5))
        except threading.BrokenBarrierError:  # no other thread was inside
            both.reset()
        return APIRouter()

    monkeypatch.setattr(app, "ROUTES", (routes,))
    context = ServeContext.create(ServeSettings(port=0))
    threads = [threading.Thread(target=app.create_app, args=(context,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not met


def test_requests_do_not_change_the_warning_filters(
    server: Running, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched: list[object] = []
    enter = warnings.catch_warnings.__enter__

    def watch(filters: warnings.catch_warnings[None]) -> None:
        touched.append(filters)
        enter(filters)

    monkeypatch.setattr(warnings.catch_warnings, "__enter__", watch)
    paths = [path for path in server.server.app.openapi()["paths"] if "{" not in path]
    assert len(paths) > 5
    for path in (*paths, "/openapi.json", "/docs", "/v1/voices/nobody", "/v1/models/none"):
        client.get(path)
    client.post("/v1/audio/speech", json={"input": ""})
    assert not touched
