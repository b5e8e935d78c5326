"""Clients that leave at every point of a conversation leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from scripted_tts import Plan, ScriptedSpeech
from serving import Running, running
from talking import LIMIT_S, Talk, audio, talking, wait_until

from vivace.serve.settings import ServeSettings

NUM_LEAVING = 320
NUM_BYTES = 10 * 3_840
LONG = 1
RESET = struct.pack("ii", 1, 0)


@pytest.fixture(scope="module")
def backend() -> ScriptedSpeech:
    plans = {LONG: Plan(6_000)}
    return ScriptedSpeech(default=Plan(10), plans=plans, step_s=0.002, max_streams=4, max_queue=64)


@pytest.fixture(scope="module")
def server(backend: ScriptedSpeech, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = ServeSettings(port=0, voices=tmp_path_factory.mktemp("voices"))
    with running(settings, backend.load) as server:
        yield server


def connect_only(talk: Talk) -> None: ...


def configure(talk: Talk) -> None:
    talk.send("session.config", response_format="pcm", seed=LONG)


def write_blank(talk: Talk) -> None:
    configure(talk)
    talk.send("input.text", text="  ")


def begin_text(talk: Talk) -> None:
    configure(talk)
    talk.send("input.text", text="One. Two. Three. ")


def hear_live_text(talk: Talk) -> None:
    begin_text(talk)
    talk.read()


def end_text(talk: Talk) -> None:
    begin_text(talk)
    talk.send("input.done")


def send_ahead(talk: Talk) -> None:
    for _ in range(4):
        end_text(talk)


def cancel(talk: Talk) -> None:
    send_ahead(talk)
    talk.send("input.cancel")


def close(talk: Talk) -> None:
    end_text(talk)
    talk.send("session.close")


POINTS: list[Callable[[Talk], None]] = [
    *(connect_only, configure, write_blank, begin_text, hear_live_text),
    *(end_text, send_ahead, cancel, close),
]


def leave(talk: Talk, is_reset: bool) -> None:
    """Without a close frame."""
    with contextlib.suppress(OSError):
        if is_reset:
            talk.socket.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        talk.socket.socket.shutdown(socket.SHUT_RDWR)
        talk.socket.socket.close()


@dataclass(frozen=True)
class Count:
    """What a server holds."""

    num_tasks: int
    num_files: int
    num_streams: int
    num_slots: int
    num_waiting: int

    def is_at_most(self, other: Count) -> bool:
        """Fewer are no leak: an earlier test's files may be closed late."""
        mine, most = dataclasses.astuple(self), dataclasses.astuple(other)
        return all(one <= limit for one, limit in zip(mine, most, strict=True))

    @classmethod
    def of(cls, server: Running, backend: ScriptedSpeech) -> Count:
        async def count_tasks() -> int:
            return len(asyncio.all_tasks())

        tasks = asyncio.run_coroutine_threadsafe(count_tasks(), server.loop).result(LIMIT_S)
        engine = server.context.models.loaded()[0].tts.engine
        return cls(
            num_tasks=tasks,
            num_files=len(os.listdir("/proc/self/fd")),
            num_streams=server.context.streams.num_active,
            num_slots=len(backend.lives),
            num_waiting=engine.num_waiting,
        )


def speak(server: Running) -> int:
    with talking(server) as talk:
        talk.send("session.config", response_format="pcm")
        return len(audio(talk.speak("One.")))


def test_leaving_anywhere_leaves_nothing(server: Running, backend: ScriptedSpeech) -> None:
    assert speak(server) == NUM_BYTES
    before = Count.of(server, backend)
    chance = random.Random(1)

    def visit(point: Callable[[Talk], None]) -> None:
        with contextlib.suppress(Exception), talking(server, close_timeout=0.0) as talk:
            try:
                point(talk)
            finally:
                leave(talk, is_reset=chance.random() < 0.5)

    for number in range(0, NUM_LEAVING, 8):  # eight at a time, each at another point
        points = [POINTS[(number + i) % len(POINTS)] for i in range(8)]
        threads = [threading.Thread(target=visit, args=[point]) for point in points]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60.0)
    wait_until(lambda: Count.of(server, backend).is_at_most(before))
    assert speak(server) == NUM_BYTES


def test_the_count_notices_who_is_still_there(server: Running, backend: ScriptedSpeech) -> None:
    before = Count.of(server, backend)
    with talking(server) as talk:
        hear_live_text(talk)
        during = Count.of(server, backend)
        assert during.num_tasks > before.num_tasks
        assert during.num_files > before.num_files
        assert (during.num_streams, during.num_slots) == (1, 1)
    wait_until(lambda: Count.of(server, backend).is_at_most(before))
