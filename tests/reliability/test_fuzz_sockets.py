"""G5: random socket messages and frames get a response or a close, without errors in the log.

The control is a socket protocol that raises for unexpected input.
"""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed

from tests.support.figures import record
from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from tests.support.websocket_client import OMNI, audio, connected, wait_until
from vivace.serve.settings import ServeSettings
from vivace.serve.sockets import session as session_module

FEW, MANY = 20, 2_500  # connections with up to 12 messages or 6 frames
EXAMPLES = settings(
    deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
SIZES = pytest.mark.parametrize(
    "num_examples", [FEW, pytest.param(MANY, marks=pytest.mark.slow)], ids=["few", "many"]
)
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
    settings = ServeSettings(port=0, voices=tmp_path_factory.mktemp("voices"))
    with running(settings, ScriptedSpeech(default=Plan(3)).load) as server:
        yield server


def check_afterwards(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    wait_until(lambda: server.context.streams.num_active == 0)
    errors = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert [each.getMessage() for each in errors if each.name != "websockets.client"] == []
    with connected(server) as talk:
        talk.send("session.config", response_format="pcm")
        assert len(audio(talk.speak("One."))) == 3 * 3_840


def frame(first: int, data: bytes, lie: int) -> bytes:
    """Return a masked frame with a random first byte, perhaps with a wrong length."""
    length = len(data) + lie
    head = (
        struct.pack("!BB", first, 0x80 | length)
        if length < 126
        else struct.pack("!BBQ", first, 0xFF, length)
    )
    return head + bytes(4) + data


def read_all(talk: Any) -> None:
    """Check that every response is JSON or audio."""
    with_limit_s = 0.02
    try:
        while True:
            talk.read(with_limit_s)
    except (TimeoutError, ConnectionClosed):
        pass


def attack_with_messages(server: Running, path: str, num_examples: int) -> int:
    """Send random messages over `num` connections; return the number of messages."""
    num_messages = 0

    @settings(EXAMPLES, max_examples=num_examples)
    @given(st.lists(messages(path), min_size=1, max_size=12))
    def attack(sent: list[str | bytes]) -> None:
        nonlocal num_messages
        with connected(server, path) as talk:
            try:
                for message in sent:
                    talk.socket.send(message)
                    num_messages += 1
            except ConnectionClosed:
                pass
            except UnicodeEncodeError:
                return
            read_all(talk)

    attack()
    return num_messages


@SIZES
@pytest.mark.parametrize("path", TYPES, ids=[path.rpartition("/")[2] for path in TYPES])
def test_random_socket_messages_are_harmless(
    server: Running, path: str, num_examples: int, caplog: pytest.LogCaptureFixture
) -> None:
    num_messages = attack_with_messages(server, path, num_examples)
    check_afterwards(server, caplog)
    if num_examples == MANY:
        name = f"G5 messages, {path.rpartition('/')[2]}"
        record(name, connections=num_examples, messages=num_messages, failures=0)


def test_control_socket_protocol_without_checks_is_detected(
    server: Running, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "parse_object", json.loads)
    attack_with_messages(server, OMNI, FEW)
    with pytest.raises(AssertionError):
        check_afterwards(server, caplog)


@SIZES
def test_random_websocket_frames_are_harmless(
    server: Running, num_examples: int, caplog: pytest.LogCaptureFixture
) -> None:
    num_frames = 0

    @settings(EXAMPLES, max_examples=num_examples)
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
        nonlocal num_frames
        with connected(server, close_timeout=0.1) as talk:
            try:
                for part in sent:
                    talk.socket.socket.sendall(part)
                    num_frames += 1
            except OSError:
                pass
            read_all(talk)

    attack()
    check_afterwards(server, caplog)
    if num_examples == MANY:
        record("G5 frames", connections=num_examples, frames=num_frames, failures=0)
