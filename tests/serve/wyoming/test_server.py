"""Wyoming with the client of the package `wyoming`: the events of Home Assistant."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.event import Event
from wyoming.info import Describe, Info
from wyoming.tts import Synthesize, SynthesizeVoice

from tests.support.scripted_tts import Plan, ScriptedSpeech, tone
from tests.support.serving import Running, running
from tests.support.wyoming_client import (
    LIMIT_S,
    WyomingClient,
    audio,
    connected,
    record_texts,
    types,
    wyoming_port,
)
from vivace.cli.main import main
from vivace.errors import RequestError
from vivace.serve.setting_sources import resolve_settings
from vivace.serve.settings import ServeSettings

NUM_FRAMES = 6
PCM = (np.clip(tone(NUM_FRAMES), -1, 1) * 32767).round().astype("<i2").tobytes()
STREAMED = ["audio-start", "audio-chunk", "audio-stop", "synthesize-stopped"]


@pytest.fixture(scope="module")
def backend() -> ScriptedSpeech:
    return ScriptedSpeech(default=Plan(NUM_FRAMES))


@pytest.fixture(scope="module")
def server(backend: ScriptedSpeech, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = ServeSettings(port=0, wyoming_port=0, voices=tmp_path_factory.mktemp("voices"))
    with running(settings, backend.load) as server:
        yield server


def close_to(content: bytes, expected: bytes) -> bool:
    ours, theirs = (np.frombuffer(each, "<i2").astype(int) for each in (content, expected))
    return len(ours) == len(theirs) and bool(np.abs(ours - theirs).max() <= 1)


# -- with the package's client -----------------------------------------------------------------


def test_package_client_receives_audio(server: Running) -> None:
    async def ask() -> list[Event]:
        client = AsyncTcpClient("127.0.0.1", wyoming_port(server), read_timeout=LIMIT_S)
        async with client:
            await client.write_event(Synthesize("Hello there.", SynthesizeVoice("heart")).event())
            events: list[Event] = []
            while not (events and AudioStop.is_type(events[-1].type)):
                event = await client.read_event()
                assert event is not None
                events.append(event)
            return events

    events = asyncio.run(ask())
    start = AudioStart.from_event(events[0])
    assert (start.rate, start.width, start.channels) == (24_000, 2, 1)
    chunks = [AudioChunk.from_event(event) for event in events[1:-1]]
    assert {(chunk.rate, chunk.width, chunk.channels) for chunk in chunks} == {(24_000, 2, 1)}
    assert close_to(b"".join(chunk.audio for chunk in chunks), PCM)
    lengths = [chunk.milliseconds for chunk in chunks]
    assert [chunk.timestamp for chunk in chunks] == [sum(lengths[:i]) for i in range(len(chunks))]


def test_describe_returns_the_voices(server: Running) -> None:
    with connected(server) as talk:
        talk.send(Describe().event().type)
        event = talk.read()
    assert event is not None
    [program] = Info.from_event(event).tts
    assert (program.name, program.installed) == ("vivace", True)
    assert program.supports_synthesize_streaming
    assert [voice.name for voice in program.voices] == ["heart", "michael"]
    for voice in program.voices:
        assert (voice.description, voice.languages) == (voice.name, ["en"])
        assert voice.installed


# -- streams -----------------------------------------------------------------------------------


def test_streamed_text_is_spoken_while_it_arrives(server: Running) -> None:
    with connected(server) as talk:
        talk.send("synthesize-start", voice={"name": "heart"})
        talk.send("synthesize-chunk", text="This is the beginning of a text that goes on and")
        before = talk.until("audio-chunk")  # no speech has ended yet
        talk.send("synthesize-chunk", text=" on.")
        talk.send("synthesize-stop")
        after = talk.until("synthesize-stopped")
    assert types([*before, *after]) == STREAMED
    assert len(audio([*before, *after])) == len(PCM)


@pytest.mark.parametrize("is_streamed", [True, False])
def test_audio_stop_lists_letters_that_the_checkpoint_does_not_read(
    server: Running, is_streamed: bool
) -> None:
    stops = []
    for text in ("The name is Мама, they say.", "The name is Mama."):
        with connected(server) as talk:
            talk.write_stream(text) if is_streamed else talk.send("synthesize", text=text)
            stops.append(talk.until("audio-stop")[-1])
    assert stops[0].data["skipped"] == ["Мама"]
    assert "skipped" not in stops[1].data
    assert AudioStop.from_event(stops[0]) == AudioStop.from_event(stops[1])


def test_synthesize_inside_a_stream_is_not_spoken_twice(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken = record_texts(server, monkeypatch)
    with connected(server) as talk:
        talk.write_stream("Hello ", "my dear ", "friend.", voice={"name": "heart"})
        assert types(talk.until("synthesize-stopped")) == STREAMED
        talk.send("ping", text="quiet")
        pong = talk.read()  # without any chunk before
    assert pong is not None
    assert (pong.type, pong.data) == ("pong", {"text": "quiet"})
    assert spoken == ["Hello my dear friend."]


@pytest.mark.parametrize("pieces", [[], ["", " "]], ids=["no chunk", "blank chunks"])
def test_synthesize_inside_an_empty_stream_is_spoken(
    server: Running, pieces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken = record_texts(server, monkeypatch)
    with connected(server) as talk:
        talk.send("synthesize-start")
        for piece in pieces:
            talk.send("synthesize-chunk", text=piece)
        talk.send("synthesize", text="Only this.")
        talk.send("synthesize-stop")
        assert types(talk.until("synthesize-stopped")) == STREAMED
    assert [text.strip() for text in spoken] == ["Only this."]


def test_stream_without_text_stops_without_audio(server: Running) -> None:
    with connected(server) as talk:
        talk.write_stream(whole=True)
        assert types(talk.until("synthesize-stopped")) == ["synthesize-stopped"]
        assert types(speak(talk)) == STREAMED[:3]


def speak(talk: WyomingClient, text: str = "One.") -> list[Event]:
    talk.send("synthesize", text=text)
    return talk.until("audio-stop")


def test_texts_of_one_connection_are_spoken_in_order(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken = record_texts(server, monkeypatch)
    with connected(server) as talk:
        talk.send("synthesize", text="First.")
        talk.write_stream("Second.")
        talk.send("synthesize", text="Third.")
        events = [talk.until("audio-stop"), talk.until("synthesize-stopped")]
        events.append(talk.until("audio-stop"))
    assert [types(each) for each in events] == [STREAMED[:3], STREAMED, STREAMED[:3]]
    assert spoken == ["First.", "Second.", "Third."]


def test_describe_and_ping_are_answered_inside_a_stream(server: Running) -> None:
    with connected(server) as talk:
        talk.send("synthesize-start")
        talk.send("describe")
        talk.send("transcribe", language="en")  # an event for another program is ignored
        talk.send("ping")
        assert types(talk.until("pong")) == ["info", "pong"]


def test_language_code_in_inline_data_is_accepted(server: Running) -> None:
    with connected(server) as talk:
        talk.send("synthesize", text="One.", voice={"language": "en-US"})
        assert types(talk.until("audio-stop")) == STREAMED[:3]
        talk.send_raw(b'{"type": "synthesize", "data": {"text": "One."}}\n')
        assert types(talk.until("audio-stop")) == STREAMED[:3]
        talk.send_raw(b'{"type": "audio-chunk", "payload_length": 3}\nabc')  # ignored
        assert types(speak(talk)) == STREAMED[:3]


# -- the command and its settings --------------------------------------------------------------


def test_public_wyoming_address_requires_explicit_permission() -> None:
    public = {"wyoming_port": 1, "host": "0.0.0.0"}
    assert resolve_settings({"wyoming_port": 1, "host": "127.0.0.1"}, {}).wyoming_port == 1
    for variables in ({}, {"VIVACE_API_KEY": "key"}):
        with pytest.raises(RequestError, match=r"Wyoming has no API keys.*--allow-anonymous"):
            resolve_settings(public, variables)
    assert resolve_settings(public | {"allow_anonymous": True}, {"VIVACE_API_KEY": "key"})
    with pytest.raises(RequestError, match="65536"):
        resolve_settings({"wyoming_port": 65_536}, {})
    for settings in ({"wyoming_port": 1}, {"host": "0.0.0.0", "allow_anonymous": True}):
        with pytest.raises(RequestError, match="--zeroconf"):
            resolve_settings({"zeroconf": True, **settings}, {})


@pytest.mark.parametrize(
    ("installed", "message"),
    [(None, "needs the package wyoming: pip install"), ("2.0.1", "tested version: 1.10.2")],
)
def test_missing_or_wrong_wyoming_package_is_one_error_line(
    installed: str | None,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from importlib.metadata import PackageNotFoundError

    def version(name: str) -> str:
        if installed is None:
            raise PackageNotFoundError(name)
        return installed

    monkeypatch.setattr("importlib.metadata.version", version)
    assert main(["wyoming", "--port=0"]) == 1
    assert message in capsys.readouterr().err


def test_port_in_use_error_names_the_flag(
    server: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["wyoming", f"--port={wyoming_port(server)}"]) == 1
    assert "choose another --wyoming-port" in capsys.readouterr().err


@pytest.mark.ci
def test_serve_command_speaks_and_ends_on_sigterm(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "vivace", "wyoming", "--port=0", f"--voices={tmp_path}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            logged = ""
            while not (found := re.search(r"wyoming: tcp://127\.0\.0\.1:(\d+)", logged)):
                line = process.stderr.readline()
                assert line, logged
                logged += line

            async def ask() -> int:
                async with AsyncTcpClient("127.0.0.1", int(found[1])) as client:
                    await client.write_event(Synthesize("Rutabaga.").event())
                    num_bytes = 0
                    while (event := await client.read_event()) and event.type != "audio-stop":
                        num_bytes += len(event.payload or b"")
                    assert event is not None
                    return num_bytes

            assert asyncio.run(asyncio.wait_for(ask(), LIMIT_S)) > 24_000 // 2
            process.terminate()
            logged += process.communicate(timeout=LIMIT_S)[1]
            assert process.returncode == 0
            assert "stopped" in logged
            assert "Rutabaga" not in logged  # the text is not logged
            assert "http:" not in logged  # only Wyoming is served
        finally:
            process.kill()
