"""Limits of connections, messages, sessions and forms, at the limit and one beyond it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from tests.support.raw_http import LIMIT_S, read_all
from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from tests.support.websocket_client import OMNI, SocketClient, audio, connected
from vivace.live_text import LiveText
from vivace.serve.errors import RefusedError
from vivace.serve.http import http_protocol, middleware, websocket_protocol
from vivace.serve.routes import enrol
from vivace.serve.settings import ServeSettings
from vivace.serve.sockets import elevenlabs, realtime, session
from vivace.serve.sockets.session import SocketSession
from vivace.serve.speaking.utterance_queue import MAX_UTTERANCES, Speech, UtteranceQueue
from vivace.serve.wyoming import frames

NUM_FRAMES = 3
NUM_BYTES = NUM_FRAMES * 3_840
MESSAGE_BYTES = 4_096
REALTIME = "/v1/realtime"
MULTI = "/v1/text-to-speech/alloy/multi-stream-input?output_format=pcm_24000"
SINGLE = "/v1/text-to-speech/alloy/stream-input?output_format=pcm_24000"


@pytest.fixture(scope="module")
def backend() -> ScriptedSpeech:
    return ScriptedSpeech(default=Plan(NUM_FRAMES))


@pytest.fixture(scope="module")
def server(backend: ScriptedSpeech, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    voices = tmp_path_factory.mktemp("voices")
    settings = ServeSettings(port=0, voices=voices, max_message_bytes=MESSAGE_BYTES)
    with running(settings, backend.load) as server:
        yield server


@pytest.fixture
def blocked(backend: ScriptedSpeech) -> Iterator[None]:
    """A server whose speech does not end during the test."""
    backend.is_open.clear()
    yield
    backend.is_open.set()


def answers_error(talk: SocketClient) -> bool:
    """Whether the next message is an error, in any protocol."""
    message = talk.read()
    assert isinstance(message, dict)
    return message.get("type") == "error" or "error" in message


# -- messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", [0, 1])
def test_message_beyond_its_byte_limit_closes_the_connection(server: Running, extra: int) -> None:
    empty = json.dumps({"type": "input.text", "text": ""})
    message = empty.replace('""', '"' + "x" * (MESSAGE_BYTES + extra - len(empty)) + '"')
    assert len(message) == MESSAGE_BYTES + extra
    with connected(server) as talk:
        talk.send("session.config", response_format="pcm")
        talk.send_raw(message)
        talk.send("input.done")
        if extra:
            assert talk.until_closed()[1] == websocket_protocol.TOO_BIG
        else:
            assert len(audio(talk.until("session.done"))) >= NUM_BYTES


@pytest.mark.parametrize("extra", [0, 1])
def test_message_beyond_its_fragment_limit_closes_the_connection(
    server: Running, extra: int
) -> None:
    text = json.dumps({"type": "session.config", "response_format": "pcm"})
    # The client adds an empty last fragment.
    num_pieces = websocket_protocol.MAX_FRAGMENTS - 1 + extra
    pieces = [text, *[" "] * (num_pieces - 1)]
    with connected(server) as talk:
        talk.socket.send(pieces)
        if extra:
            assert talk.until_closed()[1] == websocket_protocol.TOO_BIG
        else:
            assert len(audio(talk.speak("One."))) == NUM_BYTES


@pytest.mark.parametrize(
    "unsent", [websocket_protocol.MAX_PONG_BYTES - 1, websocket_protocol.MAX_PONG_BYTES]
)
def test_pings_are_answered_below_the_unsent_limit(unsent: int) -> None:
    written: list[bytes] = []
    transport = SimpleNamespace(get_write_buffer_size=lambda: unsent, write=written.append)
    peer = SimpleNamespace(
        conn=SimpleNamespace(data_to_send=lambda: [b"pong"]), transport=transport
    )
    websocket_protocol.TimedWebSocket.handle_ping(cast(Any, peer))
    assert written == ([b"pong"] if unsent < websocket_protocol.MAX_PONG_BYTES else [])


@pytest.mark.parametrize("extra", [0, 1])
def test_header_bytes_beyond_the_limit_are_parsed(extra: int) -> None:
    peer = SimpleNamespace(_stalls_at=1.0, _awaited="headers", _num_unparsed=1)
    data = b"x" * (http_protocol.MAX_UNPARSED - 1 + extra)
    assert http_protocol.TimedHTTP._is_inside_headers(cast(Any, peer), data) == (not extra)


@pytest.mark.parametrize("extra", [-1, 0])
def test_invalid_messages_at_their_limit_close_the_connection(server: Running, extra: int) -> None:
    with connected(server) as talk:
        for _ in range(session.MAX_BAD + extra):
            talk.send("nonsense")
            assert answers_error(talk)
        if extra:
            talk.send("session.config", response_format="pcm")
            assert len(audio(talk.speak("One."))) == NUM_BYTES
        else:
            assert talk.until_closed() == ([], session.POLICY)


@pytest.mark.parametrize("extra", [0, 1])
def test_message_burst_beyond_its_limit_closes_the_connection(
    server: Running, monkeypatch: pytest.MonkeyPatch, extra: int
) -> None:
    monkeypatch.setattr(session, "MAX_BURST", 20.0)
    monkeypatch.setattr(session, "MESSAGE_RATE", 1e-9)
    with connected(server) as talk:
        talk.send("session.config", response_format="pcm")
        for _ in range(int(session.MAX_BURST) - 2 + extra):
            talk.send("input.text", text="One. ")
        talk.send("input.done")
        if extra:
            assert talk.until_closed()[1] == session.POLICY
        else:
            assert len(audio(talk.until("session.done"))) >= NUM_BYTES


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("x" * session.MAX_REASON_BYTES, "x" * session.MAX_REASON_BYTES),
        ("x" * (session.MAX_REASON_BYTES + 1), "x" * session.MAX_REASON_BYTES),
        ("é" * 62, "é" * 61),  # 124 bytes; a partial character is removed
    ],
)
def test_close_reason_is_truncated_at_its_byte_limit(reason: str, expected: str) -> None:
    sent: list[dict[str, Any]] = []

    class Closing:
        _stop_reading = staticmethod(lambda: None)

        async def _write(self, event: dict[str, Any]) -> None:
            sent.append(event)

    asyncio.run(SocketSession.close(cast(Any, Closing()), 1000, reason))
    assert sent[0]["reason"] == expected


# -- waiting items of a session ----------------------------------------------------------------


def test_utterance_beyond_the_pending_limit_is_refused(server: Running, blocked: None) -> None:
    with connected(server, OMNI) as talk:
        talk.send("session.config", response_format="pcm")
        for number in range(MAX_UTTERANCES):
            talk.send("input.text", text="One.", context_id=str(number))
            talk.send("input.done", context_id=str(number))
        talk.send("input.cancel", context_id="nobody")  # answered after the messages above
        assert not answers_error(talk)
        talk.send("input.text", text="One.", context_id="one more")
        error = talk.read()
    assert isinstance(error, dict)
    assert error["code"] == "too_many_utterances"


def test_context_beyond_the_limit_is_refused(server: Running, blocked: None) -> None:
    with connected(server, MULTI) as talk:
        for number in range(elevenlabs.MAX_CONTEXTS):
            talk.send(text=" ", context_id=str(number))
        talk.send(text="Hello. ", context_id="0")  # an open context still accepts text
        talk.send(text=" ", context_id="one more")
        error = talk.read()
    assert "contexts are open; close one" in json.dumps(error)


def test_flush_beyond_the_pending_limit_is_refused(
    server: Running, blocked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elevenlabs, "MAX_UTTERANCES", 3)
    with connected(server, SINGLE) as talk:
        talk.send(text=" ")
        for _ in range(elevenlabs.MAX_UTTERANCES):
            talk.send(text="Hello. ", flush=True)
        talk.send(text="Hello. ", flush=True)
        error = talk.read()
    assert "3 flushes are pending" in json.dumps(error)


def test_item_beyond_the_pending_limit_is_refused(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(realtime, "MAX_ITEMS", 3)
    content = [{"type": "input_text", "text": "One."}]
    item = {"type": "message", "role": "user", "content": content}
    with connected(server, REALTIME) as talk:
        talk.until("session.created")
        for _ in range(realtime.MAX_ITEMS):
            talk.send("conversation.item.create", item=item)
            talk.until("conversation.item.done")
        talk.send("conversation.item.create", item=item)
        assert answers_error(talk)


# -- Wyoming -------------------------------------------------------------------------------------


def read_frame(content: bytes, max_data: int = 100) -> Any:
    async def read() -> Any:
        reader = asyncio.StreamReader(limit=frames.MAX_HEADER_BYTES)
        reader.feed_data(content[1:])
        reader.feed_eof()
        return await frames.read_event(reader, content[:1], max_data)

    return asyncio.run(read())


def line_of(size: int) -> bytes:
    empty = b'{"type": "describe", "x": ""}\n'
    return empty.replace(b'""', b'"' + b"x" * (size - len(empty)) + b'"')


def payload_of(size: int) -> bytes:
    return b'{"type": "audio-chunk", "payload_length": %d}\n' % size + b"x" * size


def data_of(size: int) -> bytes:
    data = b'{"text": ""}'.replace(b'""', b'"' + b"x" * (size - 12) + b'"')
    return b'{"type": "synthesize", "data_length": %d}\n' % size + data


@pytest.mark.parametrize(
    ("make", "limit"),
    [
        (line_of, frames.MAX_HEADER_BYTES),
        (payload_of, frames.MAX_PAYLOAD_BYTES),
        (data_of, 100),
        (lambda n: b'{"type": "' + b"x" * n + b'"}\n', frames.MAX_TYPE_CHARS),
    ],
    ids=["line", "payload", "data", "type"],
)
def test_wyoming_event_beyond_its_limit_is_refused(make: Any, limit: int) -> None:
    assert read_frame(make(limit)) is not None
    with pytest.raises(RefusedError):
        read_frame(make(limit + 1))


class PendingText:
    text = LiveText(100)


async def speak_until_cancelled(_: PendingText) -> None:
    await asyncio.Event().wait()


def test_text_beyond_the_pending_limit_of_a_connection_is_refused() -> None:
    async def fill() -> None:
        tasks: list[asyncio.Task[None]] = []

        def start(speech: Speech) -> asyncio.Task[None]:
            tasks.append(asyncio.create_task(speech))
            return tasks[-1]

        queue = UtteranceQueue(start, speak_until_cancelled)
        texts = [PendingText() for _ in range(MAX_UTTERANCES)]
        for each in texts:
            queue.add(each)
        with pytest.raises(RefusedError, match="texts are pending"):
            queue.add(PendingText())
        queue.cancel(texts[0])
        queue.add(PendingText())
        assert len(queue) == MAX_UTTERANCES
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(fill())


# -- connections and forms -----------------------------------------------------------------------


def test_connection_beyond_its_limits_is_dropped(
    backend: ScriptedSpeech,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two connections are served, one more answers health checks only, others are dropped."""
    monkeypatch.setattr(http_protocol, "HEALTH_CONNECTIONS", 1)
    settings = ServeSettings(port=0, voices=tmp_path_factory.mktemp("v"), max_connections=2)

    def ask(connection: socket.socket, path: str) -> bytes:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        return connection.recv(12)

    with running(settings, backend.load) as server, ExitStack() as stack:
        opened = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), LIMIT_S))
            for _ in range(3)
        ]
        assert [ask(one, "/v1") for one in opened[:2]] == [b"HTTP/1.1 200"] * 2
        assert ask(opened[2], "/v1") == b"HTTP/1.1 503"
        read_rest(opened[2])
        assert ask(opened[2], "/health") == b"HTTP/1.1 200"
        with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as one_more:
            assert read_all(one_more) == b""


def read_rest(connection: socket.socket) -> None:
    """The rest of an error response."""
    received = b""
    while not received.endswith(b"}}"):
        received += connection.recv(4_096)


@pytest.mark.parametrize("extra", [0, 1])
def test_form_beyond_its_field_limit_is_refused(client: httpx.Client, extra: int) -> None:
    fields = {f"field{number}": "x" for number in range(enrol.MAX_FIELDS - 1 + extra)}
    answer = client.post("/v1/audio/voices", data={"name": ""} | fields, files=[("f", b"")])
    message = answer.json()["error"]["message"]
    assert answer.status_code == 400
    assert ("form cannot be read" in message) == bool(extra), message


@pytest.mark.parametrize("extra", [0, 1])
def test_form_field_beyond_its_length_limit_is_refused(client: httpx.Client, extra: int) -> None:
    fields = {"name": "", "consent": "x" * (enrol.MAX_FIELD_BYTES + extra)}
    answer = client.post("/v1/audio/voices", data=fields, files=[("f", b"")])
    assert answer.status_code == 400
    assert ("has more than" in answer.json()["error"]["message"]) == bool(extra)


def test_preflight_max_age_equals_the_limit(
    backend: ScriptedSpeech, tmp_path_factory: pytest.TempPathFactory
) -> None:
    page = "https://page.example"
    voices = tmp_path_factory.mktemp("v")
    settings = ServeSettings(port=0, voices=voices, allowed_origins=(page,))
    asked = {"origin": page, "access-control-request-method": "POST"}
    with running(settings, backend.load) as server:
        answer = httpx.options(f"{server.url}/v1/audio/speech", headers=asked)
    assert answer.headers["access-control-max-age"] == str(middleware.MAX_CORS_AGE_S)
