"""Random messages in every dialect: answered or closed, no error in the log, nothing left."""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_tts import Plan, ScriptedSpeech
from serving import Running, running
from talking import OMNI, audio, talking, wait_until
from websockets.exceptions import ConnectionClosed

from vivace.serve.settings import ServeSettings

NUM_EXAMPLES = 20
TYPES = {
    OMNI: ["session.config", "input.text", "input.done", "input.cancel", "session.close"],
    "/v1/realtime": [
        *("session.update", "conversation.item.create", "response.create", "response.cancel"),
        "input_audio_buffer.append",
    ],
    "/v1/text-to-speech/alloy/stream-input": [],
    "/v1/text-to-speech/alloy/multi-stream-input": [],
}
NAMES = [
    *("text", "context_id", "voice", "speaker", "model", "language", "speed", "seed", "stream"),
    *("response_format", "sample_rate", "bit_rate", "task_type", "stream_audio", "instructions"),
    *("ref_audio", "ref_text", "speaker_embedding", "max_new_tokens", "temperature", "top_k"),
    *("flush", "close_context", "close_socket", "voice_settings", "generation_config", "contextId"),
    *("session", "response", "item", "input", "content", "audio", "output", "format", "metadata"),
    *("event_id", "response_id", "word_timestamps", "x_vector_only_mode", "type"),
]
WORDS = [
    "",
    " ",
    "a",
    "Hello. ",
    "alloy",
    "pcm",
    "mp3",
    "wav",
    "en",
    "auto",
    "Base",
    "\x00",
    "\ud800",
]
SIMPLE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.sampled_from(WORDS),
    st.text(max_size=20),
)
VALUES = st.recursive(
    SIMPLE,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)
        | st.just([{"content": [{"type": "input_text", "text": "Hello."}]}])
    ),
    max_leaves=6,
)


def messages(path: str) -> st.SearchStrategy[str | bytes]:
    fields = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=5)
    kinds = st.sampled_from(TYPES[path] or [""])
    typed = st.builds(lambda kind, rest: json.dumps({**rest, "type": kind}), kinds, fields)
    return st.one_of(typed, typed, fields.map(json.dumps), st.text(max_size=30), st.binary())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    told = ServeSettings(port=0, voices=tmp_path_factory.mktemp("voices"))
    with running(told, ScriptedSpeech(default=Plan(3)).load) as server:
        yield server


def check_afterwards(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    wait_until(lambda: server.context.streams.num_active == 0)
    errors = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert [each.getMessage() for each in errors if each.name != "websockets.client"] == []
    with talking(server) as talk:
        talk.send("session.config", response_format="pcm")
        assert len(audio(talk.speak("One."))) == 3 * 3_840


def frame(first: int, data: bytes, lie: int) -> bytes:
    """A masked frame with any first byte, that may announce more than it has."""
    length = len(data) + lie
    head = (
        struct.pack("!BB", first, 0x80 | length)
        if length < 126
        else struct.pack("!BBQ", first, 0xFF, length)
    )
    return head + bytes(4) + data


def read_all(talk: Any) -> None:
    """Whatever is answered is JSON or audio."""
    with_limit_s = 0.02
    try:
        while True:
            talk.read(with_limit_s)
    except (TimeoutError, ConnectionClosed):
        pass


@pytest.mark.parametrize("path", TYPES, ids=[path.rpartition("/")[2] for path in TYPES])
def test_random_messages_do_no_harm(
    server: Running, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    @settings(max_examples=NUM_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(messages(path), min_size=1, max_size=12))
    def attack(sent: list[str | bytes]) -> None:
        with talking(server, path) as talk:
            try:
                for message in sent:
                    talk.socket.send(message)
            except ConnectionClosed:
                pass
            except UnicodeEncodeError:
                return
            read_all(talk)

    attack()
    check_afterwards(server, caplog)


def test_random_frames_do_no_harm(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    @settings(max_examples=NUM_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        st.lists(
            st.one_of(
                st.binary(min_size=1, max_size=40),
                st.builds(
                    frame,
                    st.integers(0, 255),
                    st.binary(max_size=60),
                    st.sampled_from([0, 0, 0, 1, 2**16, 2**62]),
                ),
            ),
            max_size=6,
        )
    )
    def attack(sent: list[bytes]) -> None:
        with talking(server, close_timeout=0.1) as talk:
            try:
                for part in sent:
                    talk.socket.socket.sendall(part)
            except OSError:
                pass
            read_all(talk)

    attack()
    check_afterwards(server, caplog)
