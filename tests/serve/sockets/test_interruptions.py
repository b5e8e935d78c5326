"""Interrupts speeches over each WebSocket protocol at random times: every slot becomes free."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from tests.support.websocket_client import OMNI, SocketClient, connected, wait_until
from vivace.serve.settings import ServeSettings

NUM_FRAMES = 10
TEXT = "One, two, three, and a few words more. "
REALTIME = "/v1/realtime?model=mini"
ELEVENLABS = "/v1/text-to-speech/heart/stream-input?output_format=pcm_24000"
RESET = struct.pack("ii", 1, 0)


@pytest.fixture
def backend() -> ScriptedSpeech:
    return ScriptedSpeech(default=Plan(5_000), step_s=0.0005, max_streams=2, max_queue=64)


@pytest.fixture
def server(backend: ScriptedSpeech, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = ServeSettings(port=0, voices=tmp_path_factory.mktemp("voices"))
    with running(settings, backend.load) as server:
        yield server


def is_free(server: Running, backend: ScriptedSpeech) -> bool:
    waiting = server.context.models.loaded()[0].tts.engine.num_waiting
    return not (server.context.streams.num_active or backend.active_slots or waiting)


def leave(talk: SocketClient, chance: random.Random) -> None:
    is_reset = chance.random() < 0.5
    with suppress(OSError):  # without any text the server has closed the connection already
        if is_reset:
            talk.socket.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        talk.socket.socket.shutdown(socket.SHUT_RDWR)


def begin_omni(talk: SocketClient, chance: random.Random) -> bool:
    talk.send("session.config", response_format="pcm")
    num_pieces = chance.randrange(4)
    for _ in range(num_pieces):
        talk.send("input.text", text=TEXT)
    if chance.random() < 0.3:
        talk.send("input.done")
    return num_pieces > 0


def begin_realtime(talk: SocketClient, chance: random.Random) -> bool:
    content = [{"type": "input_text", "text": TEXT}]
    item = {"type": "message", "role": "user", "content": content}
    talk.send("response.create", response={"input": [item], "output_modalities": ["audio"]})
    return True


def begin_elevenlabs(talk: SocketClient, chance: random.Random) -> bool:
    talk.send(text=" ")
    num_pieces = chance.randrange(4)
    for _ in range(num_pieces):
        talk.send(text=TEXT)
    if chance.random() < 0.3:
        talk.send(text="")
    return num_pieces > 0


def cancel_omni(talk: SocketClient) -> None:
    talk.send("input.cancel")
    talk.until("audio.cancelled")


def cancel_realtime(talk: SocketClient) -> None:
    talk.send("response.cancel")
    talk.until("response.done")


Begin = Callable[[SocketClient, random.Random], bool]  # whether audio will follow
Cancel = Callable[[SocketClient], None]


@pytest.mark.parametrize("num_interruptions", [40, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("path", "begin", "cancel"),
    [
        pytest.param(OMNI, begin_omni, cancel_omni, id="omni"),
        pytest.param(REALTIME, begin_realtime, cancel_realtime, id="realtime"),
        pytest.param(ELEVENLABS, begin_elevenlabs, None, id="elevenlabs"),
    ],
)
def test_interruptions_at_random_times_free_every_slot(
    server: Running,
    backend: ScriptedSpeech,
    path: str,
    begin: Begin,
    cancel: Cancel | None,
    num_interruptions: int,
    record_property: Callable[[str, object], None],
) -> None:
    record_property("interruptions", num_interruptions)
    chance = random.Random(15)
    with ExitStack() as stack:
        talk: SocketClient | None = None
        for _ in range(num_interruptions):
            if talk is None:
                talk = stack.enter_context(connected(server, path))
            is_heard = begin(talk, chance)
            for _ in range(chance.randrange(5) if is_heard else 0):
                talk.read()
            if cancel is not None and chance.random() < 0.7:
                cancel(talk)
            else:
                leave(talk, chance)
                stack.close()
                talk = None
    wait_until(lambda: is_free(server, backend))
    backend.default, backend.step_s = Plan(NUM_FRAMES), 0.0
    before = backend.num_admitted
    with connected(server) as last:
        last.send("session.config", response_format="pcm")
        messages = last.speak("Two.")
    assert sum(len(each) for each in messages if isinstance(each, bytes)) == NUM_FRAMES * 3_840
    assert backend.num_admitted == before + 1
    assert before > num_interruptions / 4  # control: most of them had a slot


def test_slot_check_detects_an_active_speech(server: Running, backend: ScriptedSpeech) -> None:
    with connected(server) as talk:
        talk.send("session.config", response_format="pcm")
        talk.send("input.text", text=TEXT)
        talk.until("audio.start")
        assert not is_free(server, backend)
        talk.send("input.cancel")
        talk.until("audio.cancelled")
    wait_until(lambda: is_free(server, backend))
