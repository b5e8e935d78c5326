"""Disconnects at any time and random frames leave no resources of Wyoming sessions."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from tests.support.websocket_client import wait_until
from tests.support.wyoming_client import LIMIT_S, WyomingClient, audio, connected
from vivace.serve.settings import ServeSettings

NUM_LEAVING, AT_ONCE = 200, 8
NUM_FRAMES = 10
RESET = struct.pack("ii", 1, 0)
TEXT = "One. Two. Three, and a few words more. "


@pytest.fixture(scope="module")
def backend() -> ScriptedSpeech:
    return ScriptedSpeech(default=Plan(NUM_FRAMES), step_s=0.001, max_streams=4, max_queue=64)


@pytest.fixture(scope="module")
def server(backend: ScriptedSpeech, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = ServeSettings(port=0, wyoming_port=0, voices=tmp_path_factory.mktemp("voices"))
    with running(settings, backend.load) as server:
        yield server


def held(server: Running, backend: ScriptedSpeech) -> tuple[int, ...]:
    """Counts of tasks, files, connections, streams, slots and waiting requests."""

    async def count_tasks() -> int:
        return len(asyncio.all_tasks())

    tasks = asyncio.run_coroutine_threadsafe(count_tasks(), server.loop).result(LIMIT_S)
    assert server.server.wyoming is not None
    return (
        tasks,
        len(os.listdir("/proc/self/fd")),
        server.server.wyoming.num_connections,
        server.context.streams.num_active,
        len(backend.active_slots),
        server.context.models.loaded()[0].tts.engine.num_waiting,
    )


def is_at_most(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Lower counts are not a leak: files of an earlier test may be closed late."""
    return all(mine <= most for mine, most in zip(one, other, strict=True))


def speaks(server: Running) -> bool:
    with connected(server) as talk:
        talk.send("synthesize", text="One.")
        return len(audio(talk.until("audio-stop"))) == NUM_FRAMES * 3_840


def visit(server: Running, chance: random.Random) -> None:
    """Send some events, read some responses and disconnect."""
    with contextlib.suppress(OSError, AssertionError), connected(server) as talk:
        kind = chance.choice(["describe", "synthesize", "stream", "stream", "stream"])
        if kind == "describe":
            talk.send("describe")
        elif kind == "synthesize":
            for _ in range(chance.randint(1, 4)):
                talk.send("synthesize", text=TEXT)
            for _ in range(chance.randint(0, 4)):
                talk.read()
        else:
            write_some(talk, chance)
        if chance.random() < 0.5:
            talk.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


def write_some(talk: WyomingClient, chance: random.Random) -> None:
    """A stream that is truncated at any byte, or before or after its end."""
    head = {"type": "synthesize-chunk", "data": {"text": TEXT}}
    chunk = json.dumps(head).encode() + b"\n"
    content = b'{"type": "synthesize-start"}\n' + chunk * chance.randint(0, 3)
    content += chance.choice([b"", b'{"type": "synthesize-stop"}\n'])
    if chance.random() < 0.3:
        talk.send_raw(content[: chance.randint(1, len(content))])
        return
    talk.send_raw(content)
    if chunk in content and chance.random() < 0.3:
        talk.until("audio-chunk")


def test_disconnect_at_any_time_frees_all_resources(
    server: Running, backend: ScriptedSpeech, record_property: Callable[[str, object], None]
) -> None:
    record_property("interruptions", NUM_LEAVING)
    assert speaks(server)
    wait_until(lambda: held(server, backend)[2] == 0)
    before = held(server, backend)
    for number in range(0, NUM_LEAVING, AT_ONCE):
        threads = [
            threading.Thread(target=visit, args=[server, random.Random(number + i)])
            for i in range(AT_ONCE)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
    wait_until(lambda: is_at_most(held(server, backend), before))
    assert speaks(server)


def test_resource_check_detects_an_open_session(server: Running, backend: ScriptedSpeech) -> None:
    wait_until(lambda: held(server, backend)[2] == 0)
    before = held(server, backend)
    with connected(server) as talk:
        talk.send("synthesize-start")
        talk.send("synthesize-chunk", text=TEXT)
        talk.until("audio-chunk")
        during = held(server, backend)
    assert [now > then for now, then in zip(during[:4], before[:4], strict=True)] == [True] * 4
    wait_until(lambda: is_at_most(held(server, backend), before))


# -- random frames -----------------------------------------------------------------------------

TYPES = ["describe", "synthesize", "synthesize-start", "synthesize-chunk", "synthesize-stop"]
TYPES += ["ping", "audio-chunk", "select-program", "x", ""]
VALUES: list[object] = [
    None,
    True,
    0,
    -1,
    1.5,
    2**40,
    "",
    " ",
    "a",
    "heart",
    "\0",
    "\ud800",
    [],
    {},
    [1],
    "en",
]
NAMES = ["text", "voice", "text_format", "context", "name", "language", "speaker", "rate"]


def random_value(chance: random.Random, depth: int = 0) -> object:
    if depth < 3 and chance.random() < 0.3:
        return {chance.choice(NAMES): random_value(chance, depth + 1) for _ in range(2)}
    return chance.choice(VALUES)


def random_frame(chance: random.Random) -> bytes:
    """Mostly almost valid events, sometimes random bytes."""
    data = {chance.choice(NAMES): random_value(chance) for _ in range(chance.randint(0, 3))}
    if chance.random() < 0.6:
        data["text"] = chance.choice(["Hello.", "One two. ", "a"])
    content = json.dumps(data).encode()
    header: dict[str, object] = {"type": chance.choice(TYPES), "data_length": len(content)}
    if chance.random() < 0.1:
        header["data_length"] = chance.choice([0, len(content) - 1, len(content) + 1, 2**32])
    if chance.random() < 0.1:
        header["payload_length"] = chance.choice([0, 3, -1, 2**32, "3", None])
    if chance.random() < 0.1:
        header[chance.choice(["type", "data", "data_length"])] = random_value(chance)
    sent = bytearray(json.dumps(header).encode() + b"\n" + content)
    if chance.random() < 0.2:
        sent[chance.randrange(len(sent))] = chance.randrange(256)
    return bytes(sent)


def attack(server: Running, num_frames: int) -> None:
    chance, num_sent = random.Random(num_frames), 0
    while num_sent < num_frames:
        with connected(server) as talk:
            for _ in range(chance.randint(1, 12)):
                talk.send_raw(random_frame(chance))
                num_sent += 1
            with contextlib.suppress(OSError):
                talk.socket.shutdown(socket.SHUT_WR)
            assert all(
                event.type for event in talk.until_closed()
            )  # the server always closes the connection


@pytest.mark.parametrize("num_frames", [400, pytest.param(10_000, marks=pytest.mark.slow)])
def test_random_frames_leave_the_server_working(
    server: Running, backend: ScriptedSpeech, num_frames: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert speaks(server)
    wait_until(lambda: held(server, backend)[2] == 0)
    before = held(server, backend)
    attack(server, num_frames)
    wait_until(lambda: is_at_most(held(server, backend), before))
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
    assert speaks(server)
