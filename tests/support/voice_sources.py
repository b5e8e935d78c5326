"""A scripted voice in this process or behind a real server, and its remaining resources."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from vivace import TTS
from vivace.serve.settings import ServeSettings

LIMIT_S = 60.0  # on a busy machine
WAYS = ("in process", "over a socket")


@dataclass
class VoiceUnderTest:
    """`voice` is given to an integration, `backend` controls its speech."""

    voice: TTS | str
    backend: ScriptedSpeech
    server: Running | None = None

    @property
    def is_free(self) -> bool:
        """Whether no slot is used and no request waits."""
        if isinstance(self.voice, TTS):
            load = self.voice.engine.capacity()
            return not self.backend.active_slots and load.num_running == load.num_waiting == 0
        assert self.server is not None
        return not self.backend.active_slots and self.server.context.streams.num_active == 0

    def speak_at_length(self, step_s: float) -> None:
        """Make 5,000 frames, so that only an interruption ends a speech during a test."""
        self.backend.default, self.backend.step_s = Plan(5_000), step_s

    def speak_briefly(self) -> None:
        self.backend.default, self.backend.step_s = Plan(25), 0.0

    async def wait_free(self) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not self.is_free:
            assert time.monotonic() < deadline, "a slot is still taken"
            await asyncio.sleep(0.005)


@contextmanager
def voice_under_test(way: str, folder: Path, **settings: object) -> Iterator[VoiceUnderTest]:
    backend = ScriptedSpeech()
    if way == "in process":
        with backend.load(None) as tts:  # type: ignore[arg-type]
            yield VoiceUnderTest(tts, backend)
        return
    chosen = ServeSettings(port=0, voices=folder, **settings)  # type: ignore[arg-type]
    with running(chosen, backend.load) as server:
        yield VoiceUnderTest(server.url, backend, server)


@contextmanager
def speaking(way: str, folder: Path) -> Iterator[TTS | str]:
    """The real embedded voice, which has word timings."""
    if way == "in process":
        with TTS.load("mini") as tts:
            yield tts
        return
    with running(ServeSettings(port=0, voices=folder)) as server:
        yield server.url
