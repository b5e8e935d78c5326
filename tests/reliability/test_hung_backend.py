"""A hung backend is detected, waiting requests fail, and the model is loaded again.

The control is the same server without the watchdog: waiting requests never end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import patch

import httpx
import pytest

from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from tests.support.websocket_client import connected, wait_until
from vivace import TTS
from vivace.backends.base import Frames, Slot
from vivace.serve.models.watchdog import Watchdog
from vivace.serve.settings import ModelSpec, ServeSettings

LIMIT_S = 60.0
ENDLESS = {"seed": 1, "max_new_tokens": 1_000_000}
PATH = "/v1/audio/speech"


@dataclass
class HangingSpeech(ScriptedSpeech):
    """A backend that hangs in its next turn on request."""

    hangs: Event = field(default_factory=Event)
    is_hanging: Event = field(default_factory=Event)
    may_return: Event = field(default_factory=Event)

    def step(self, slots: Sequence[Slot], num_frames: int) -> Frames:
        if self.hangs.is_set():
            self.is_hanging.set()
            assert self.may_return.wait(LIMIT_S)
        return super().step(slots, num_frames)


@dataclass
class HungServer:
    """A server whose first backend hangs, and whose second is loaded when the test allows it."""

    server: Running
    backend: HangingSpeech
    may_load: Event
    ends: dict[str, str] = field(default_factory=dict)  # result of each client
    threads: list[threading.Thread] = field(default_factory=list)

    def ask(self, name: str, **fields: Any) -> None:
        thread = threading.Thread(target=self._read, args=(name, fields), daemon=True)
        self.threads.append(thread)
        thread.start()

    def _read(self, name: str, fields: dict[str, Any]) -> None:
        body = {"input": "Hello.", "response_format": "pcm", **ENDLESS, **fields}
        try:
            answer = httpx.post(f"{self.server.url}{PATH}", json=body, timeout=LIMIT_S)
            self.ends[name] = f"{answer.status_code} {'engine_failed' in answer.text}"
        except httpx.RemoteProtocolError:
            self.ends[name] = "broken off"

    def talk(self, name: str) -> None:
        self.threads.append(threading.Thread(target=self._talk, args=(name,), daemon=True))
        self.threads[-1].start()

    def _talk(self, name: str) -> None:
        with connected(self.server) as talk:
            talk.send("session.config", response_format="pcm", **ENDLESS)
            talk.send("input.text", text="Hello.")
            talk.send("input.done")
            messages, code = talk.until_closed()
        kinds = {each["type"] for each in messages if isinstance(each, dict)}
        self.ends[name] = f"{'error' in kinds} {'session.done' in kinds} {code}"

    def status(self, path: str) -> int:
        return httpx.get(f"{self.server.url}{path}", timeout=LIMIT_S).status_code

    @property
    def num_waiting(self) -> int:
        return sum(model.tts.engine.num_waiting for model in self.server.context.models.loaded())


@contextmanager
def opened(tmp_path: Path, timeout_s: float) -> Iterator[HungServer]:
    backend = HangingSpeech(plans={1: Plan(1_000_000)}, step_s=0.05, max_streams=3)
    after, may_load = ScriptedSpeech(), Event()
    loads: list[ModelSpec] = []

    def load(spec: ModelSpec) -> TTS:
        loads.append(spec)
        if len(loads) == 1:
            return backend.load(spec)
        assert may_load.wait(LIMIT_S)
        return after.load(spec)

    settings = ServeSettings(port=0, voices=tmp_path, turn_timeout_s=timeout_s, drain_timeout_s=0.5)
    tick = Watchdog.tick

    def tick_while_hung(watchdog: Watchdog, busy_since: float | None) -> bool:
        """A turn that a busy machine delays is not counted."""
        is_hung = backend.is_hanging.is_set() and not backend.may_return.is_set()
        return tick(watchdog, busy_since if is_hung else None)

    try:
        with (
            patch.object(Watchdog, "tick", tick_while_hung),
            running(settings, load) as server,
        ):
            hung = HungServer(server, backend, may_load)
            yield hung
            may_load.set()
            backend.may_return.set()
    finally:
        may_load.set()
        backend.may_return.set()


def hang(hung: HungServer) -> None:
    """Running speech over HTTP and a socket, speech that has not begun, and a queued request."""
    hung.ask("stream")
    hung.talk("socket")
    hung.ask("whole", stream=False)
    wait_until(lambda: len(hung.backend.active_slots) == 3)
    hung.ask("waiting")
    wait_until(lambda: hung.num_waiting == 1)
    wait_until(
        lambda: min(progress.num_made for progress in hung.backend.active_slots.values()) > 1
    )
    assert hung.status("/health/live") == 200
    hung.backend.hangs.set()
    assert hung.backend.is_hanging.wait(LIMIT_S)


def test_hung_backend_is_detected_and_replaced(tmp_path: Path) -> None:
    with opened(tmp_path, timeout_s=3.0) as hung:
        hang(hung)
        wait_until(lambda: hung.status("/health/live") == 503)
        assert hung.status("/health") == 503
        assert hung.status("/health/ready") == 503
        for thread in hung.threads:
            thread.join(LIMIT_S)
        assert hung.ends == {
            "stream": "broken off",
            "socket": "True False 1011",
            "whole": "500 True",
            "waiting": "500 True",
        }
        hung.may_load.set()
        wait_until(lambda: hung.status("/health/ready") == 200)
        assert hung.status("/health/live") == 200
        hung.backend.may_return.set()  # the hung call returns late
        body = {"input": "Hello.", "response_format": "pcm"}
        answer = httpx.post(f"{hung.server.url}{PATH}", json=body, timeout=LIMIT_S)
        assert (answer.status_code, len(answer.content)) == (200, 25 * 1_920 * 2)


@pytest.mark.slow  # waits for a timeout
def test_control_hung_backend_without_a_watchdog_is_not_detected(tmp_path: Path) -> None:
    """Control: only the watchdog ends the requests, no other timeout."""
    with opened(tmp_path, timeout_s=0.0) as hung:
        hang(hung)
        for thread in hung.threads:
            thread.join(3.0)
        assert hung.ends == {}
        assert hung.status("/health/live") == 200
