"""A browser, a tab in it, and a server whose voice is a short tone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.page_driver import Driver, browser, tab
from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from vivace.serve.settings import ServeSettings


@pytest.fixture(scope="module")
def launched() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def kept_tab(launched: Any) -> Iterator[Driver]:
    with tab(launched, permissions=["microphone", "clipboard-read", "clipboard-write"]) as driver:
        yield driver


@pytest.fixture
def page(kept_tab: Driver, server: Running) -> Iterator[Driver]:
    """A tab without stored data; the next test uses it again."""
    yield kept_tab
    kept_tab.renew(f"{server.url}/page/icon.svg")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A voice that is a short tone, which leaves the processor to the browser."""
    voices = tmp_path_factory.mktemp("voices")
    backend = ScriptedSpeech(default=Plan(num_frames=6))
    with running(ServeSettings(port=0, voices=voices, drain_timeout_s=5.0), backend.load) as served:
        yield served
