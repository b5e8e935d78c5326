"""One server with the embedded voice for each module of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from serving import Running, running

from vivace.serve.settings import ServeSettings


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The embedded voice on a free port of loopback, without a key."""
    voices: Path = tmp_path_factory.mktemp("voices")
    with running(ServeSettings(port=0, voices=voices, drain_timeout_s=5.0)) as server:
        yield server


@pytest.fixture(scope="module")  # making one costs as much as a request: it reads certificates
def client(server: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60.0) as client:
        yield client
