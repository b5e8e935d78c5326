"""A backend that never returns is found, what waits for it fails, and the model is loaded again.

The control is the same server without the watch: then nothing that waits ends.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest

from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from tests.support.websocket_client import talking, wait_until
from vivace import TTS
from vivace.backends.base import Frames, Slot
from vivace.serve.pulse import HANG_TICKS, Pulse
from vivace.serve.settings import ModelSpec, ServeSettings

LIMIT_S = 60.0
ENDLESS = {"seed": 1, "max_new_tokens": 1_000_000}
PATH = "/v1/audio/speech"


@dataclass
class HangingSpeech(ScriptedSpeech):
    """Hangs in the next turn when it is told to."""

    hangs: Event = field(default_factory=Event)
    is_hanging: Event = field(default_factory=Event)
    may_return: Event = field(default_factory=Event)

    def step(self, slots: Sequence[Slot], num_frames: int) -> Frames:
        if self.hangs.is_set():
            self.is_hanging.set()
            assert self.may_return.wait(LIMIT_S)
        return super().step(slots, num_frames)


@dataclass
class House:
    """A server whose first backend hangs, and whose second may be loaded when it is told so."""

    server: Running
    backend: HangingSpeech
    may_load: Event
    ends: dict[str, str] = field(default_factory=dict)  # how each reader ended
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
        with talking(self.server) as talk:
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
def opened(tmp_path: Path, timeout_s: float) -> Iterator[House]:
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
    try:
        with running(settings, load) as server:
            house = House(server, backend, may_load)
            yield house
            may_load.set()
            backend.may_return.set()
    finally:
        may_load.set()
        backend.may_return.set()


def hang(house: House) -> None:
    """With speech that has begun over HTTP and over a socket, one that has not, and a queue."""
    house.ask("stream")
    house.talk("socket")
    house.ask("whole", stream=False)
    wait_until(lambda: len(house.backend.lives) == 3)
    house.ask("waiting")
    wait_until(lambda: house.num_waiting == 1)
    wait_until(lambda: min(life.num_made for life in house.backend.lives.values()) > 1)
    assert house.status("/health/live") == 200
    house.backend.hangs.set()
    assert house.backend.is_hanging.wait(LIMIT_S)


def test_a_backend_that_hangs_is_found_and_replaced(tmp_path: Path) -> None:
    with opened(tmp_path, timeout_s=3.0) as house:
        hang(house)
        wait_until(lambda: house.status("/health/live") == 503)
        assert house.status("/health") == 503
        assert house.status("/health/ready") == 503
        for thread in house.threads:
            thread.join(LIMIT_S)
        assert house.ends == {
            "stream": "broken off",
            "socket": "True False 1011",
            "whole": "500 True",
            "waiting": "500 True",
        }
        house.may_load.set()
        wait_until(lambda: house.status("/health/ready") == 200)
        assert house.status("/health/live") == 200
        house.backend.may_return.set()  # late: it does no harm
        body = {"input": "Hello.", "response_format": "pcm"}
        answer = httpx.post(f"{house.server.url}{PATH}", json=body, timeout=LIMIT_S)
        assert (answer.status_code, len(answer.content)) == (200, 25 * 1_920 * 2)


@pytest.mark.slow  # it waits for nothing to happen
def test_without_the_watch_nothing_that_waits_would_end(tmp_path: Path) -> None:
    """The control: the watch is what tells them, and no time-out of somebody else's."""
    with opened(tmp_path, timeout_s=0.0) as house:
        hang(house)
        for thread in house.threads:
            thread.join(3.0)
        assert house.ends == {}
        assert house.status("/health/live") == 200


def test_only_a_turn_that_is_found_in_every_tick_has_hung() -> None:
    pulse = Pulse()
    assert not any(pulse.has_stopped(None) for _ in range(100))  # idle
    assert not any(pulse.has_stopped(turn / 2) for turn in range(100))  # other turns
    answers = [pulse.has_stopped(7.0) for _ in range(HANG_TICKS + 2)]
    assert answers == [False] * HANG_TICKS + [True] * 2
    assert not pulse.has_stopped(8.0)  # it went on
    assert not any(pulse.has_stopped(at) for at in [*[9.0] * HANG_TICKS, None, 9.0])
