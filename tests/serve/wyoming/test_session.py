"""Invalid input, slow clients, limits and failures: an error event, then the connection closes."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from wyoming.event import Event

from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from tests.support.websocket_client import wait_until
from tests.support.wyoming_client import WyomingClient, audio, connected, types, wyoming_port
from vivace.serve.settings import ServeSettings

NUM_FRAMES = 4
SEND_S, FRAME_S, IDLE_S = 2.0, 2.2, 2.4  # long enough for a client on a busy machine
MAX_CHARS, MAX_CONNECTIONS = 3_000, 20


@pytest.fixture(scope="module")
def backend() -> ScriptedSpeech:
    return ScriptedSpeech(default=Plan(NUM_FRAMES))


@pytest.fixture(scope="module")
def server(backend: ScriptedSpeech, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = ServeSettings(
        port=0,
        wyoming_port=0,
        voices=tmp_path_factory.mktemp("voices"),
        max_text_chars=MAX_CHARS,
        max_connections=MAX_CONNECTIONS,
    )
    with running(settings, backend.load) as server:
        yield server


def frame(kind: str, data: object = None, **header: object) -> bytes:
    """An event with any fields in its first line."""
    content = b"" if data is None else json.dumps(data).encode()
    length = {"data_length": len(content)} if content else {}
    return json.dumps({"type": kind, **length, **header}).encode() + b"\n" + content


def speaks(talk: WyomingClient) -> bool:
    talk.send("synthesize", text="One.")
    return len(audio(talk.until("audio-stop"))) == NUM_FRAMES * 3_840


@pytest.mark.parametrize("voice", [{"name": ""}, {"name": None}, {}, None])
def test_event_without_a_voice_name_uses_the_default_voice(server: Running, voice: object) -> None:
    with connected(server) as talk:
        talk.send("synthesize", text="One.", voice=voice)
        assert len(audio(talk.until("audio-stop"))) == NUM_FRAMES * 3_840


START = frame("synthesize-start")
BAD: dict[str, tuple[bytes, str]] = {
    "http": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "not JSON"),
    "http that hides an event": (
        b"POST / HTTP/1.1\r\n\r\n" + frame("synthesize", {"text": "One."}),
        "not JSON",
    ),
    "blank line": (b"\n", "not JSON"),
    "nul": (b"\0\n", "not JSON"),
    "not utf-8": (b'{"type": "\xff"}\n', "not UTF-8"),
    "cut json": (b'{"type": "describe"\n', "not JSON"),
    "list": (b"[]\n", "JSON object"),
    "number": (b"1\n", "JSON object"),
    "deep": (b"[" * 500 + b"]" * 500 + b"\n", "nested"),
    "key twice": (b'{"type": "a", "type": "b"}\n', "twice"),
    "nan": (b'{"type": "a", "x": NaN}\n', "NaN"),
    "no type": (b"{}\n", "type is missing"),
    "type a number": (b'{"type": 1}\n', "type: must be a valid string, not 1"),
    "type empty": (b'{"type": ""}\n', "type: must have at least 1 character"),
    "type long": (frame("x" * 65), "type: must have at most 64 characters"),
    "line without end": (b'{"type": "' + b"x" * 70_000, "first line may have 65,536"),
    "line too long": (b'{"type": "' + b"x" * 70_000 + b'"}\n', "first line may have 65,536"),
    "header data a list": (
        b'{"type": "synthesize", "data": [1]}\n',
        "data: must be a valid dictionary, not [1]",
    ),
    "data 4 GiB": (b'{"type": "synthesize", "data_length": 4294967296}\n', "the limit is 262,144"),
    "payload 4 GiB": (
        b'{"type": "audio-chunk", "payload_length": 4294967296}\n',
        "the limit is 1,048,576",
    ),
    "data negative": (b'{"type": "synthesize", "data_length": -1}\n', "data_length: "),
    "data a string": (b'{"type": "synthesize", "data_length": "9"}\n', "valid integer, not '9'"),
    "data true": (b'{"type": "synthesize", "data_length": true}\n', "valid integer, not True"),
    "data a fraction": (b'{"type": "synthesize", "data_length": 1.5}\n', "valid integer, not 1.5"),
    "data not json": (b'{"type": "synthesize", "data_length": 2}\nxx', "not JSON"),
    "data no object": (frame("synthesize", ["text"]), "JSON object"),
    "no text": (frame("synthesize", {"texts": "One."}), "text of synthesize is missing"),
    "text null": (frame("synthesize", {"text": None}), "text of synthesize is missing"),
    "text a list": (frame("synthesize", {"text": ["One."]}), "text of synthesize: must be"),
    "text empty": (frame("synthesize", {"text": ""}), "blank"),
    "text blank": (frame("synthesize", {"text": " \n"}), "blank"),
    "text nul": (frame("synthesize", {"text": "a\0b"}), "NUL"),
    "text half a pair": (frame("synthesize", {"text": "\ud800"}), "surrogate"),
    "text too long": (frame("synthesize", {"text": "a " * 2_000}), "3,000"),
    "ssml": (
        frame("synthesize", {"text": "One.", "text_format": "ssml"}),
        "must be 'text', not",
    ),
    "format a list": (
        frame("synthesize", {"text": "a", "text_format": []}),
        "must be 'text', not",
    ),
    "voice a string": (
        frame("synthesize", {"text": "a", "voice": "heart"}),
        "voice of synthesize: must be an object, not 'heart'",
    ),
    "voice unknown": (frame("synthesize", {"text": "a", "voice": {"name": "bob"}}), "no voice"),
    "voice a path": (frame("synthesize", {"text": "a", "voice": {"name": "../x"}}), "no voice"),
    "voice a number": (frame("synthesize", {"text": "a", "voice": {"name": 7}}), "voice"),
    "voice surrogate": (frame("synthesize", {"text": "a", "voice": {"name": "\udc00"}}), "surrog"),
    "speaker": (
        frame("synthesize", {"text": "a", "voice": {"name": "heart", "speaker": "p1"}}),
        "speaker 'p1' does not exist",
    ),
    "language unknown": (
        frame("synthesize", {"text": "a", "voice": {"language": "tlh"}}),
        "language",
    ),
    "language a number": (frame("synthesize", {"text": "a", "voice": {"language": 1}}), "language"),
    "chunk without start": (frame("synthesize-chunk", {"text": "a"}), "without synthesize-start"),
    "stop without start": (frame("synthesize-stop"), "without synthesize-start"),
    "start twice": (START + START, "inside a stream"),
    "stream blank": (
        START + frame("synthesize-chunk", {"text": " "}) + frame("synthesize-stop"),
        "blank",
    ),
    "stream too long": (START + frame("synthesize-chunk", {"text": "a " * 2_000}), "3,000"),
    "stream of an unknown voice": (
        frame("synthesize-start", {"voice": {"name": "bob"}}),
        "no voice named 'bob'",
    ),
    "chunk no text": (START + frame("synthesize-chunk", {}), "text of synthesize-chunk"),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_input_returns_error_and_closes(server: Running, name: str) -> None:
    content, words = BAD[name]
    with connected(server) as talk:
        talk.send_raw(content)
        events = talk.until_closed()
    assert types(events) == ["error"]
    assert words in events[0].data["text"]
    with connected(server) as talk:
        assert speaks(talk)


def test_oversized_declared_length_is_refused_at_once(server: Running) -> None:
    """A declared 4 GiB are refused at once; a client that goes on sending still reads the error."""
    with connected(server) as talk:
        talk.send_raw(b'{"type": "audio-chunk", "payload_length": 4294967296}\n' + bytes(2**20))
        assert types(talk.until_closed()) == ["error"]


def test_too_many_pending_texts_are_refused(server: Running, backend: ScriptedSpeech) -> None:
    backend.is_open.clear()
    try:
        with connected(server) as talk:
            for _ in range(9):
                talk.send("synthesize", text="One.")
            [event] = talk.until_closed()
    finally:
        backend.is_open.set()
    assert "8 texts are pending" in event.data["text"]


def test_failure_after_audio_sends_no_audio_stop(server: Running, backend: ScriptedSpeech) -> None:
    for plan in (Plan(20, fails_at=5), Plan(never_ends=True)):
        backend.default = plan
        try:
            with connected(server) as talk:
                talk.write_stream("One.")
                assert types(talk.until_closed()) == ["audio-start", "audio-chunk", "error"]
        finally:
            backend.default = Plan(NUM_FRAMES)
    with connected(server) as talk:
        assert speaks(talk)


def test_connection_beyond_the_limit_is_refused(server: Running) -> None:
    wait_until(lambda: num_connections(server) == 0)
    talks = [connected(server) for _ in range(MAX_CONNECTIONS)]
    opened = [each.__enter__() for each in talks]
    try:
        for talk in opened:
            talk.send("ping")
            talk.until("pong")  # the first connection was accepted
        with connected(server) as talk:
            [event] = talk.until_closed()
        assert event.data["code"] == "too_many_connections"
        assert speaks(opened[0])
    finally:
        for each in talks:
            each.__exit__(None, None, None)
    wait_until(lambda: num_connections(server) == 0)
    with connected(server) as talk:
        assert speaks(talk)


def num_connections(server: Running) -> int:
    assert server.server.wyoming is not None
    return server.server.wyoming.num_connections


# -- slow peers --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def endless() -> ScriptedSpeech:
    return ScriptedSpeech(default=Plan(100), max_streams=4)


@pytest.fixture(scope="module")
def strict(endless: ScriptedSpeech, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = ServeSettings(
        port=0,
        wyoming_port=0,
        voices=tmp_path_factory.mktemp("voices"),
        send_timeout_s=SEND_S,
        body_timeout_s=FRAME_S,
        socket_idle_s=IDLE_S,
    )
    with running(settings, endless.load) as server:
        yield server


STALLS = {
    "nothing": b"",
    "half a line": b'{"type"',
    "half the data": frame("synthesize", {"text": "One."})[:-3],
    "half a payload": frame("audio-chunk", payload_length=9) + b"x",
    "an event, then nothing": frame("unknown"),
    "a stream without text": START,
    "a stream without its end": START + frame("synthesize-chunk", {"text": "One"}),
}


def test_stalled_clients_are_disconnected(strict: Running) -> None:
    with ExitStack() as stack:
        talks = [stack.enter_context(connected(strict)) for _ in STALLS]
        for talk, content in zip(talks, STALLS.values(), strict=True):
            talk.send_raw(content)
        ends = {name: talk.until_closed()[-1] for name, talk in zip(STALLS, talks, strict=True)}
    for name, event in ends.items():
        assert (event.type, event.data["code"] in ("idle", "timeout")) == ("error", True), name


def test_client_that_does_not_read_is_disconnected(
    strict: Running, endless: ScriptedSpeech
) -> None:
    """Control: a completed speech would end with an event."""
    before = endless.num_admitted
    with connected(strict, receive_bytes=4_096) as talk:
        talk.send("synthesize", text="This is a long text. " * 3_000)
        wait_until(lambda: endless.num_admitted > before)
        wait_until(lambda: strict.context.streams.num_active == 0)
        assert set(types(talk.until_closed())) <= {"audio-start", "audio-chunk"}


def test_session_with_pending_speech_is_not_idle(strict: Running, endless: ScriptedSpeech) -> None:
    endless.is_open.clear()  # other requests occupy the engine longer than the idle limit
    try:
        with connected(strict) as talk:
            talk.send("synthesize", text="One.")
            time.sleep(2 * IDLE_S)
            endless.is_open.set()
            assert types(talk.until("audio-stop"))[0] == "audio-start"
    finally:
        endless.is_open.set()


def test_request_rate_applies_to_wyoming(tmp_path: Path) -> None:
    settings = ServeSettings(
        port=0, wyoming_port=0, voices=tmp_path, max_requests_per_minute=2, max_queue=4
    )
    with running(settings, ScriptedSpeech(default=Plan(1)).load) as server:
        with connected(server) as talk:
            for _ in range(2):
                talk.send("synthesize", text="One.")
                talk.until("audio-stop")
            talk.send("synthesize", text="One.")
            [event] = talk.until_closed()
        assert "minute" in event.data["text"]


# -- the end -----------------------------------------------------------------------------------


def test_drain_finishes_the_text_and_refuses_others(tmp_path: Path) -> None:
    backend = ScriptedSpeech(default=Plan(10))
    settings = ServeSettings(port=0, wyoming_port=0, voices=tmp_path)
    events: list[Event] = []
    with running(settings, backend.load) as server:
        backend.pause_at = 3
        with connected(server) as talk, connected(server) as idle:
            idle.send("ping")
            idle.until("pong")
            talk.write_stream("One.")
            events += talk.until("audio-chunk")
            server.loop.call_soon_threadsafe(server.server.stop)
            wait_until(server.context.streams.draining.is_set)
            assert idle.until_closed() == []
            wait_until(lambda: not is_listening(server))
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", wyoming_port(server)), 5.0)
            backend.is_over.set()
            events += talk.until_closed()
    assert types(events) == ["audio-start", "audio-chunk", "audio-stop", "synthesize-stopped"]
    assert len(audio(events)) == 10 * 3_840


def is_listening(server: Running) -> bool:
    port = f":{wyoming_port(server):04X}"
    lines = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
    return any(line.split()[1].endswith(port) and line.split()[3] == "0A" for line in lines)


def test_runaway_text_ends_with_error(tmp_path: Path) -> None:
    settings = ServeSettings(port=0, wyoming_port=0, voices=tmp_path, drain_timeout_s=0.1)
    backend = ScriptedSpeech(default=Plan(10))
    with running(settings, backend.load) as server:
        backend.pause_at = 3
        with connected(server) as talk:
            talk.write_stream("One.")
            talk.until("audio-chunk")
            server.loop.call_soon_threadsafe(server.server.stop)
            last = talk.until_closed()[-1]
        backend.is_over.set()
    assert (last.type, last.data["code"]) == ("error", "draining")
