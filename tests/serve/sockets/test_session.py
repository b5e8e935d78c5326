"""Invalid input, slow clients and disconnects cause an error message or a clean close only."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from websockets.frames import Frame, Opcode

from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from tests.support.websocket_client import OMNI, SocketClient, audio, connected, types, wait_until
from vivace.serve.settings import ServeSettings
from vivace.serve.sockets import session
from vivace.serve.speaking import session as base_session
from vivace.serve.speaking import utterance_queue
from vivace.serve.streams.encoders import SpeechEncoder

REALTIME = "/v1/realtime"
ELEVENLABS = "/v1/text-to-speech/alloy/stream-input?output_format=pcm_24000"
MULTI = "/v1/text-to-speech/alloy/multi-stream-input?output_format=pcm_24000"
DIALECTS = [OMNI, REALTIME, ELEVENLABS, MULTI]
NUM_BYTES = 10 * 3_840
LONG, FAILS, FAILS_AT_ONCE = 1, 2, 3  # seeds


@contextmanager
def serving(
    folder: pytest.TempPathFactory, backend: ScriptedSpeech | None = None, **settings: Any
) -> Iterator[Running]:
    backend = backend or make_backend()
    served = ServeSettings(port=0, voices=folder.mktemp("voices"), **settings)
    with running(served, backend.load) as server:
        yield server


def make_backend(**fields: Any) -> ScriptedSpeech:
    plans = {
        LONG: Plan(6_000),
        FAILS: Plan(50, fails_at=25),
        FAILS_AT_ONCE: Plan(is_refused=True),
    }
    return ScriptedSpeech(default=Plan(10), plans=plans, **{"step_s": 0.005, **fields})


@pytest.fixture(scope="module")
def backend() -> ScriptedSpeech:
    return make_backend()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, backend: ScriptedSpeech) -> Iterator[Running]:
    with serving(tmp_path_factory, backend) as server:
        yield server


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No client behaviour logs an error."""
    yield
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [each.getMessage() for each in errors if each.name != "websockets.client"] == []


def configure(talk: SocketClient, **fields: Any) -> None:
    talk.send("session.config", **{"response_format": "pcm", **fields})


def still_speaks(server: Running) -> None:
    with connected(server) as talk:
        configure(talk)
        assert len(audio(talk.speak("One."))) == NUM_BYTES


# --- Bad messages -----------------------------------------------------------------------------

BAD: dict[str, str | bytes] = {
    "no JSON": "{",
    "a list": "[]",
    "a number": "1",
    "a string": '"input.text"',
    "nothing": "",
    "twice the same key": '{"type": "input.text", "type": "input.text"}',
    "deep": "[" * 50_000 + "]" * 50_000,
    "deep objects": '{"type":' * 5_000 + "1" + "}" * 5_000,
    "NaN": '{"type": "input.text", "text": NaN}',
    "a huge number": '{"type": "session.config", "seed": ' + "9" * 10_000 + "}",
    "infinity": '{"type": "session.config", "speed": 1e999}',
    "NUL": '{"type": "input.text", "text": "\\u0000"}',
    "half a character": '{"type": "input.text", "text": "\\ud800"}',
    "no type": '{"text": "Hello."}',
    "an unknown type": '{"type": "input.audio"}',
    "a type that is no string": '{"type": ["input.text"]}',
    "bytes": b"\x00\x01",
    "text that is no string": '{"type": "input.text", "text": 1}',
    "no text": '{"type": "input.text"}',
    "a context that is no string": '{"type": "input.done", "context_id": {}}',
    "a context that is too long": '{"type": "input.cancel", "context_id": "' + "x" * 200 + '"}',
    "an unknown voice": '{"type": "session.config", "voice": "nobody"}',
    "a path as a voice": '{"type": "session.config", "voice": "../../etc/passwd"}',
    "an unknown format": '{"type": "session.config", "response_format": "midi"}',
    "a rate that is none": '{"type": "session.config", "sample_rate": 1}',
    "a speed that is too high": '{"type": "session.config", "speed": 100}',
    "an unknown task": '{"type": "session.config", "task_type": "Singing"}',
    "word timestamps": '{"type": "session.config", "word_timestamps": true}',
    "a recording by its URL": '{"type": "session.config", "ref_audio": "http://localhost/a.wav"}',
    "a recording that is none": '{"type": "session.config", "ref_audio": "AAAA"}',
}


@pytest.mark.parametrize("message", BAD.values(), ids=BAD)
def test_invalid_omni_message_returns_error_and_keeps_the_connection(
    server: Running, message: str | bytes
) -> None:
    with connected(server) as talk:
        configure(talk)
        talk.send_raw(message)
        answer = talk.read()
        assert isinstance(answer, dict)
        assert answer["type"] == "error"
        assert answer["message"]
        assert len(audio(talk.speak("One."))) == NUM_BYTES


@pytest.mark.parametrize("path", [ELEVENLABS, MULTI])
def test_invalid_elevenlabs_message_closes_the_connection(server: Running, path: str) -> None:
    for name, message in BAD.items():
        with connected(server, path) as talk:
            talk.send_raw(message)
            talk.send(text=1)  # the first message is valid in this protocol
            answer = talk.read()
            assert isinstance(answer, dict), name
            assert answer["message"], name
            assert talk.until_closed() == ([], 1008), name
    still_speaks(server)


def test_invalid_realtime_event_returns_error_event(server: Running) -> None:
    for name, message in BAD.items():
        with connected(server, REALTIME) as talk:
            talk.until("session.created")
            talk.send_raw(message)
            answer = talk.read()
            assert isinstance(answer, dict), name
            assert answer["type"] == "error", name
            assert answer["error"]["message"], name
    still_speaks(server)


def test_unknown_voice_error_lists_available_voices(server: Running) -> None:
    with connected(server) as talk:
        configure(talk, voice="nobody")
        answer = talk.read()
    assert isinstance(answer, dict)
    assert (answer["code"], answer["param"]) == ("voice_not_found", "voice")
    assert server.context.models.cards()[0].speakers[0] in answer["message"]


def test_text_before_session_config_is_refused(server: Running) -> None:
    with connected(server) as talk:
        talk.send("input.text", text="Hello.")
        answer = talk.read()
        assert isinstance(answer, dict)
        assert answer["code"] == "no_config"


def test_session_config_inside_an_utterance_is_refused(
    server: Running,
) -> None:
    with connected(server) as talk:
        configure(talk)
        talk.send("input.text", text="One. ")
        configure(talk, response_format="wav")
        messages = talk.speak("Two.")
    assert types(messages).count("error") == 1
    assert len(audio(messages)) == NUM_BYTES


def test_blank_text_returns_error_and_ends_the_utterance(server: Running) -> None:
    with connected(server) as talk:
        configure(talk)
        assert types(talk.speak(" ", "\n\t")) == ["error", "session.done"]
        assert types(talk.speak("One."))[-1] == "session.done"


def test_too_many_invalid_messages_close_the_connection(server: Running) -> None:
    with connected(server) as talk:
        for _ in range(session.MAX_BAD):
            talk.send("nonsense")
        messages, code = talk.until_closed()
    assert (types(messages), code) == (["error"] * session.MAX_BAD, 1008)
    still_speaks(server)


def test_too_many_pending_utterances_are_refused(server: Running) -> None:
    with connected(server) as talk:
        configure(talk, seed=LONG)
        for _ in range(utterance_queue.MAX_UTTERANCES + 1):
            talk.send("input.text", text="One.")
            talk.send("input.done")
        refused = talk.until("error")[-1]
        assert isinstance(refused, dict)
        assert refused["code"] == "too_many_utterances"
        talk.send("input.cancel")
        talk.until("audio.cancelled")
    wait_until(lambda: server.context.streams.num_active == 0)


def test_text_beyond_the_limit_fails_the_whole_utterance(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with serving(tmp_path_factory, max_text_chars=100) as server, connected(server) as talk:
        configure(talk)
        messages = talk.speak("a" * 101)
        assert types(messages) == ["error", "session.done"]
        assert "100" in str(messages[0])
        assert len(audio(talk.speak("a" * 100))) == NUM_BYTES


@pytest.mark.parametrize(
    ("path", "size"),
    [*((path, 1_000_000) for path in DIALECTS), (OMNI, 300_000), (OMNI, 5_000_000)],
)
def test_oversized_frame_closes_with_1009(server: Running, path: str, size: int) -> None:
    with connected(server, path) as talk:
        talk.send("input.text", text="x" * size)
        messages, code = talk.until_closed()
        assert code == 1009
        assert audio(messages) == b""
    still_speaks(server)


def test_oversized_frame_during_speech_frees_the_slot(server: Running) -> None:
    with connected(server) as talk:
        configure(talk, seed=LONG)
        talk.send("input.text", text="One. Two. Three. ")
        talk.until("audio.start")
        talk.send("input.text", text="x" * 1_000_000)
        assert talk.until_closed()[1] == 1009
    wait_until(lambda: server.context.streams.num_active == 0)


def test_invalid_utf8_closes_with_1007(server: Running) -> None:
    with connected(server) as talk:
        frame = Frame(Opcode.TEXT, b"\xff\xfe").serialize(mask=True)
        talk.socket.socket.sendall(frame)
        assert talk.until_closed() == ([], 1007)
    still_speaks(server)


def test_invalid_frame_closes_cleanly(server: Running) -> None:
    with connected(server) as talk:
        talk.socket.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert talk.until_closed() == ([], 1002)
    still_speaks(server)


def test_message_in_too_many_fragments_closes_cleanly(server: Running) -> None:
    with connected(server) as talk:
        frames = [Frame(Opcode.TEXT, b"{", fin=False)] + [
            Frame(Opcode.CONT, b"", fin=False)
        ] * 5_000
        with contextlib.suppress(OSError):
            talk.socket.socket.sendall(b"".join(each.serialize(mask=True) for each in frames))
        assert talk.until_closed() == ([], 1009)
    still_speaks(server)


def test_message_in_few_fragments_is_accepted(server: Running) -> None:
    with connected(server) as talk:
        message = json.dumps({"type": "session.config", "response_format": "pcm"}).encode()
        frames = [Frame(Opcode.TEXT, message[:1], fin=False)]
        frames += [
            Frame(Opcode.CONT, message[i : i + 1], fin=False) for i in range(1, len(message))
        ]
        frames += [Frame(Opcode.CONT, b"")]
        talk.socket.socket.sendall(b"".join(each.serialize(mask=True) for each in frames))
        assert len(audio(talk.speak("One."))) == NUM_BYTES


def test_pings_of_a_client_that_does_not_read_are_limited(server: Running) -> None:
    with socket.socket() as client:
        shake_hands(server, client)
        pings = Frame(Opcode.PING, bytes(125)).serialize(mask=True) * 1_000
        client.settimeout(5.0)
        with contextlib.suppress(TimeoutError):  # the server stops reading
            for _ in range(150):
                client.sendall(pings)
        connections = list(server.server._uvicorn.server_state.connections)
        assert max(each.transport.get_write_buffer_size() for each in connections) < 1_000_000
    still_speaks(server)


def test_message_flood_closes_the_connection(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MAX_BURST", 100.0)
    monkeypatch.setattr(session, "MESSAGE_RATE", 0.001)
    with connected(server) as talk:
        configure(talk)
        for _ in range(200):
            talk.send("input.text", text="")
        assert talk.until_closed() == ([], 1008)
    monkeypatch.undo()
    still_speaks(server)


def test_long_close_reason_is_truncated(server: Running) -> None:
    with connected(server, f"/v1/text-to-speech/{'ü' * 300}/stream-input") as talk:
        talk.send(text="Hello.")
        messages, code = talk.until_closed()
    assert isinstance(messages[-1], dict)
    assert messages[-1]["error"] == "voice_not_found"
    assert code == 1008


# --- Faults and full queues -------------------------------------------------------------------


def test_failure_after_audio_closes_with_partial_audio_error(server: Running) -> None:
    with connected(server) as talk:
        configure(talk, seed=FAILS)
        talk.send("input.text", text="One.")
        talk.send("input.done")
        messages, code = talk.until_closed()
    assert types(messages) == ["audio.start", "bytes", "error", "audio.done"]
    assert isinstance(messages[-1], dict)
    assert isinstance(messages[-2], dict)
    assert messages[-1]["error"] is True
    assert messages[-2]["partial_audio"] is True
    assert code == 1011


def test_failure_before_audio_keeps_the_connection(server: Running) -> None:
    with connected(server) as talk:
        configure(talk, seed=FAILS_AT_ONCE)
        talk.send("input.text", text="One. Two. Three. ")
        talk.until("error")
        assert types(talk.speak("More of it.")) == ["session.done"]  # ignored
        configure(talk)
        messages = talk.speak("One.")
        assert len(audio(messages)) == NUM_BYTES
        assert isinstance(messages[-1], dict)
        assert messages[-1]["utterance_index"] == 1


def test_runaway_speech_returns_error(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    backend = make_backend(step_s=0.0)
    backend.default = Plan(never_ends=True)
    with serving(tmp_path_factory, backend) as server, connected(server) as talk:
        configure(talk)
        talk.send("input.text", text="One.")
        talk.send("input.done")
        messages, code = talk.until_closed()
    assert (types(messages)[-2:], code) == (["error", "audio.done"], 1011)


def test_full_server_returns_queue_full_with_retry_time(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    backend = make_backend(max_streams=1, max_queue=0)
    with serving(tmp_path_factory, backend) as server, connected(server) as first:
        configure(first, seed=LONG)
        first.send("input.text", text="One. Two. Three. ")
        first.until("audio.start")
        with connected(server) as second:
            configure(second)
            refused = second.speak("Two.")
            assert types(refused) == ["error", "session.done"]
            assert isinstance(refused[0], dict)
            assert refused[0]["code"] == "queue_full"
            assert refused[0]["retry_after_ms"] > 0
            with connected(server, ELEVENLABS) as third:
                third.send(text="Hello. ", flush=True)
                messages, code = third.until_closed()
                assert isinstance(messages[-1], dict)
                assert (messages[-1]["error"], code) == ("queue_full", 1013)
            with connected(server, REALTIME) as fourth:
                content = [{"type": "input_text", "text": "Hello."}]
                fourth.send("response.create", response={"input": [{"content": content}]})
                done = fourth.until("response.done")[-1]
                assert isinstance(done, dict)
                assert done["response"]["status"] == "failed"
                assert done["response"]["status_details"]["error"]["code"] == "queue_full"
            first.send("input.cancel")
            first.until("audio.cancelled")
            wait_until(lambda: server.context.streams.num_active == 0)
            assert len(audio(second.speak("Two."))) == NUM_BYTES


# --- Leaving, idling, not reading -------------------------------------------------------------


@pytest.mark.parametrize("is_reset", [True, False], ids=["reset", "closed"])
@pytest.mark.parametrize("is_open", [True, False], ids=["live text", "whole text"])
def test_disconnect_frees_the_slot(
    server: Running, backend: ScriptedSpeech, is_reset: bool, is_open: bool
) -> None:
    with connected(server) as talk:
        configure(talk, seed=LONG)
        talk.send("input.text", text="One. Two. Three. ")
        if not is_open:
            talk.send("input.done")
        talk.until("audio.start")
        wait_until(lambda: len(backend.active_slots) == server.context.streams.num_active == 1)
        (speech,) = backend.active_slots.values()
        if is_reset:
            reset = struct.pack("ii", 1, 0)
            talk.socket.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        talk.socket.socket.shutdown(socket.SHUT_RDWR)
        talk.socket.socket.close()
        wait_until(lambda: server.context.streams.num_active == 0 and not backend.active_slots)
    assert speech.num_left > 0  # the speech was not completed


def test_idle_connection_gets_error_and_is_closed(tmp_path_factory: pytest.TempPathFactory) -> None:
    with serving(tmp_path_factory, socket_idle_s=0.3) as server:
        with connected(server) as talk:
            configure(talk)
            messages, code = talk.until_closed()
            assert (types(messages), code) == (["error"], 1000)
        with connected(server) as talk:  # unfinished text occupies no slot
            configure(talk)
            talk.send("input.text", text="One. Two. ")
            messages, code = talk.until_closed()
            assert (types(messages)[-1], code) == ("error", 1000)
        wait_until(lambda: server.context.streams.num_active == 0)


def test_idle_limit_counts_from_the_last_message(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, handled = FakeClock(), Counter[session.SocketSession]()

    def has_handled(count: int) -> bool:
        return handled.total() == count

    for module in (session, base_session):
        monkeypatch.setattr(module, "time", clock)
    count_messages(monkeypatch, handled)
    with serving(tmp_path_factory, socket_idle_s=300.0) as server, connected(server) as talk:
        configure(talk)
        wait_until(partial(has_handled, 1))
        for number in range(5):
            clock.offset_s += 200.0
            talk.send("input.text", text="")
            wait_until(partial(has_handled, number + 2))
        assert len(audio(talk.speak("One."))) == NUM_BYTES


class FakeClock:
    """A monotonic clock that a test can move forward."""

    offset_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.offset_s


def count_messages(
    monkeypatch: pytest.MonkeyPatch, handled: Counter[session.SocketSession]
) -> None:
    take = session.SocketSession.take

    async def counting_take(each: session.SocketSession, event: Mapping[str, Any]) -> None:
        await take(each, event)
        handled[each] += 1

    monkeypatch.setattr(session.SocketSession, "take", counting_take)


def test_session_with_unfinished_speech_is_not_idle(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = make_backend()
    checks = shorten_idle_limit_when_busy(monkeypatch)
    content = [{"type": "input_text", "text": "One."}]
    with (
        serving(tmp_path_factory, backend) as server,
        connected(server) as omni_talk,
        connected(server, ELEVENLABS) as eleven,
        connected(server, REALTIME) as realtime,
    ):
        backend.is_open.clear()
        configure(omni_talk)
        omni_talk.send("input.text", text="One.")
        omni_talk.send("input.done")
        eleven.send(text="One. ")
        eleven.send(text="")
        realtime.send("response.create", response={"input": [{"content": content}]})
        wait_until(lambda: sum(num_checks >= 3 for num_checks in checks.values()) == 3)
        backend.is_open.set()
        assert len(audio(omni_talk.until("session.done"))) == NUM_BYTES
        assert eleven.until_closed()[1] == 1000
        done = realtime.until("response.done")[-1]
        assert isinstance(done, dict)
        assert done["response"]["status"] == "completed"


def shorten_idle_limit_when_busy(monkeypatch: pytest.MonkeyPatch) -> Counter[session.SocketSession]:
    """Give a session an idle limit of 10 ms once it has speech to make; counts its idle checks.

    The limit is long before that, so a slow client is not disconnected before it asks for speech.
    """
    checks: Counter[session.SocketSession] = Counter()
    receive_timeout_s = session.SocketSession._receive_timeout_s

    def counted_timeout_s(each: session.SocketSession, is_draining: bool) -> float:
        if each.is_busy():
            each.idle_s = 0.01
            checks[each] += 1
        return receive_timeout_s(each, is_draining)

    monkeypatch.setattr(session.SocketSession, "_receive_timeout_s", counted_timeout_s)
    return checks


def test_client_that_stops_reading_is_disconnected_alone(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    backend = make_backend(step_s=0.0)
    with serving(tmp_path_factory, backend, send_timeout_s=1.0) as server:
        with socket.socket() as lazy:
            num_before = backend.num_admitted
            ask_without_reading(server, lazy)
            wait_until(lambda: backend.num_admitted > num_before)
            still_speaks(server)
            wait_until(lambda: server.context.streams.num_active == 0)
            assert is_gone(lazy)
        still_speaks(server)


def shake_hands(server: Running, client: socket.socket) -> None:
    """A handshake over a raw socket with a small receive buffer."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.connect(("127.0.0.1", server.port))
    client.sendall(
        f"GET {OMNI} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    assert b" 101 " in client.recv(4_096)


def ask_without_reading(server: Running, client: socket.socket) -> None:
    """Request minutes of audio without reading it."""
    shake_hands(server, client)
    for message in (
        {"type": "session.config", "response_format": "pcm", "seed": LONG, "sample_rate": 48_000},
        {"type": "input.text", "text": "One."},
        {"type": "input.done"},
    ):
        frame = Frame(Opcode.TEXT, json.dumps(message).encode())
        client.sendall(frame.serialize(mask=True))


def is_gone(client: socket.socket) -> bool:
    """Whether the connection is closed after its pending data."""
    client.settimeout(60.0)
    with contextlib.suppress(ConnectionResetError):
        while client.recv(1_000_000):
            pass
    return True


# --- Shutting down ----------------------------------------------------------------------------


def test_drain_closes_idle_connections_and_finishes_speech(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    backend = make_backend(step_s=0.1)
    with (
        serving(tmp_path_factory, backend) as server,
        connected(server) as idle,
        connected(server) as busy,
        connected(server, REALTIME) as other,
    ):
        other.until("session.created")
        configure(idle)
        configure(busy)
        busy.send("input.text", text="One.")
        busy.send("input.done")
        busy.until("audio.start")
        server.loop.call_soon_threadsafe(server.server.stop)
        assert idle.until_closed() == ([], 1012)
        assert other.until_closed() == ([], 1012)
        messages, code = busy.until_closed()
        assert (types(messages)[-2:], code) == (["audio.done", "session.done"], 1012)


@pytest.mark.parametrize("path", [OMNI, ELEVENLABS])
def test_drain_waits_for_the_last_message_of_a_speech(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    finish = SpeechEncoder.finish

    async def finish_late(encoder: SpeechEncoder) -> bytes:
        await asyncio.sleep(0.5)  # the engine has finished by now
        return await finish(encoder)

    monkeypatch.setattr(SpeechEncoder, "finish", finish_late)
    with serving(tmp_path_factory) as server, connected(server, path) as talk:
        if path == OMNI:
            configure(talk)
            talk.send("input.text", text="One.")
            talk.send("input.done")
        else:
            talk.send(text="One. ")
            talk.send(text="")
        talk.read()
        server.loop.call_soon_threadsafe(server.server.stop)
        messages, code = talk.until_closed()
    assert isinstance(messages[-1], dict)
    last = messages[-1].get("isFinal"), messages[-1].get("type"), code
    assert last in ((None, "session.done", 1012), (True, None, 1000))


def test_many_connections_are_served_concurrently(server: Running) -> None:
    done: list[int] = []

    def speak() -> None:
        with connected(server) as talk:
            configure(talk)
            done.append(len(audio(talk.speak("One. ", "Two."))))

    threads = [threading.Thread(target=speak) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert done == [NUM_BYTES] * len(threads)
