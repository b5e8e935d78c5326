"""Marks of the server's audio: header, fields of messages, tags and signatures."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.c2pa_chain import write_chain
from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from tests.support.websocket_client import connected
from tests.support.wyoming_client import connected as wyoming_talking
from vivace.errors import RequestError
from vivace.mark.c2pa import read_manifest
from vivace.serve.setting_sources import resolve_settings
from vivace.serve.settings import ServeSettings

ENCODE = "/v1/audio/encode"
HEADER = "x-vivace-provenance"
STATEMENT = b"AI-generated speech"


@pytest.fixture(scope="module")
def backend() -> ScriptedSpeech:
    return ScriptedSpeech(default=Plan(12))


@pytest.fixture(scope="module")
def server(backend: ScriptedSpeech, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = ServeSettings(port=0, wyoming_port=0, voices=tmp_path_factory.mktemp("voices"))
    with running(settings, backend.load) as server:
        yield server


def ask(server: Running, path: str = "/v1/audio/speech", **fields: Any) -> httpx.Response:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        body = {"model": "tts-1", "input": "Hello.", "text": "Hello.", **fields}
        return client.post(path, json=body).raise_for_status()


@pytest.mark.parametrize("format", ["mp3", "opus", "aac", "flac", "wav", "pcm"])
@pytest.mark.parametrize("stream", [False, True])
def test_response_has_the_header_and_files_the_tags(
    server: Running, format: str, stream: bool
) -> None:
    response = ask(server, response_format=format, stream=stream)
    header = response.headers[HEADER]
    assert header.startswith("ai-generated; tool=Vivace ")
    assert "voice=preset; marks=metadata; digital-source-type=trainedAlgorithmicMedia" in header
    has_place = format not in ("aac", "pcm") and not (format == "wav" and stream)
    assert (STATEMENT in response.content) == has_place


@pytest.mark.parametrize("path", ["/v1/text-to-speech/heart", "/v1/text-to-speech/heart/stream"])
def test_elevenlabs_response_has_the_header(server: Running, path: str) -> None:
    assert "ai-generated" in ask(server, path).headers[HEADER]


@pytest.mark.parametrize("format", ["mp3", "opus", "aac", "flac", "wav", "pcm"])
def test_converted_speech_keeps_its_provenance(server: Running, format: str) -> None:
    speech = ask(server, response_format="pcm")
    with httpx.Client(base_url=server.url, timeout=60) as client:
        query = {"response_format": format}
        given = {HEADER: speech.headers[HEADER]}
        kept = client.post(ENCODE, params=query, content=speech.content, headers=given)
        other = client.post(ENCODE, params=query, content=speech.content)
    assert kept.headers[HEADER] == speech.headers[HEADER]
    assert HEADER not in other.headers  # the server does not know that this is speech
    assert (STATEMENT in kept.content) == (format not in ("aac", "pcm"))
    assert STATEMENT not in other.content


@pytest.mark.parametrize(
    "provenance",
    ["", "human", "ai-generated", "ai-generated; model=a; voice=human", "ai-generated; voice=preset"
     "; model=%00", "ai-generated" * 1_000],
)  # fmt: skip
def test_unknown_provenance_is_rejected(server: Running, provenance: str) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        answer = client.post(ENCODE, content=bytes(4_800), headers={HEADER: provenance})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_provenance")


def test_realtime_response_has_the_provenance(server: Running) -> None:
    with connected(server, "/v1/realtime") as talk:
        content = [{"type": "input_text", "text": "Hello."}]
        item = {"type": "message", "role": "user", "content": content}
        talk.send("response.create", response={"conversation": "none", "input": [item]})
        done = talk.until("response.done")[-1]
    assert isinstance(done, dict)
    assert done["response"]["provenance"].startswith("ai-generated; tool=Vivace ")


def test_wyoming_audio_start_has_the_provenance(server: Running) -> None:
    with wyoming_talking(server) as talk:
        talk.send("synthesize", text="One.")
        [start] = [one for one in talk.until("audio-stop") if one.type == "audio-start"]
    assert start.data["provenance"].startswith("ai-generated; tool=Vivace ")


def test_mark_none_has_no_header_and_no_tags(backend: ScriptedSpeech, tmp_path: Path) -> None:
    settings = ServeSettings(port=0, wyoming_port=0, voices=tmp_path, mark="none")
    with running(settings, backend.load) as server:
        response = ask(server, response_format="mp3")
        with wyoming_talking(server) as talk:
            talk.send("synthesize", text="One.")
            messages = talk.until("audio-stop")
    assert all("provenance" not in one.data for one in messages)
    assert HEADER not in response.headers
    assert STATEMENT not in response.content


def test_complete_responses_are_signed(backend: ScriptedSpeech, tmp_path: Path) -> None:
    pytest.importorskip("c2pa")
    chain = write_chain(tmp_path)
    files: dict[str, Any] = {"c2pa_cert": chain.certificate, "c2pa_key": chain.key}
    settings = ServeSettings(port=0, voices=tmp_path, mark="c2pa", **files)
    with running(settings, backend.load) as server:
        signed = ask(server, response_format="wav", stream=False)
        streamed = ask(server, response_format="wav", stream=True)
        other = ask(server, response_format="flac", stream=False)
    store = read_manifest(io.BytesIO(signed.content), "audio/wav")
    assert store is not None
    assert store["validation_state"] == "Valid"
    assert "marks=metadata, c2pa;" in signed.headers[HEADER]
    assert "marks=metadata;" in streamed.headers[HEADER]
    assert "marks=metadata;" in other.headers[HEADER]
    assert read_manifest(io.BytesIO(other.content), "audio/flac") is None


def test_invalid_setting_is_rejected() -> None:
    with pytest.raises(RequestError, match="mark must be metadata, watermark, c2pa"):
        resolve_settings({}, {"VIVACE_MARK": "loud"})


def test_c2pa_without_certificate_is_rejected() -> None:
    pytest.importorskip("c2pa")
    with pytest.raises(RequestError, match="c2pa-cert"):
        resolve_settings({"mark": "c2pa"}, {}).load_marking()
