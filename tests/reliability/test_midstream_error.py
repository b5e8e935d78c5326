"""G12: every client detects a truncated speech, at any position.

The controls are servers that end a failed speech cleanly: every client must accept that, which
shows that its verdict depends on our server.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.support.disconnecting_clients import TALKS
from tests.support.figures import record
from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from vivace.errors import NumericError
from vivace.serve.settings import ServeSettings
from vivace.serve.speaking.speak import OpenStream, PreparedSpeech, SpeechReport, SpeechSink, Words

NUM_FRAMES = 40
FRAME_BYTES = 1_920 * 2
FEW = (1, 8, 40)  # frames before the failure
MANY = tuple(range(1, 41, 2))
LIMIT_S = 60.0


class Broken(Exception):
    """The client reports an error."""


@pytest.fixture(scope="module")
def backend() -> ScriptedSpeech:
    plans = {100 + at: Plan(NUM_FRAMES, fails_at=at) for at in range(1, NUM_FRAMES + 1)}
    return ScriptedSpeech(plans=plans, default=Plan(NUM_FRAMES))


@pytest.fixture(scope="module")
def server(backend: ScriptedSpeech, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    settings = ServeSettings(port=0, voices=tmp_path_factory.mktemp("voices"))
    with running(settings, backend.load) as server:
        yield server


# -- HTTP clients --------------------------------------------------------------------------------


def read_httpx(url: str, body: dict[str, Any]) -> bytes:
    try:
        return httpx.post(url, json=body, verify=False, timeout=LIMIT_S).content
    except httpx.HTTPError as error:
        raise Broken from error


def read_openai(url: str, body: dict[str, Any]) -> bytes:
    base_url = url.removesuffix("/audio/speech")
    body = {"model": "tts-1", "voice": "alloy", **body}
    extra = {name: body.pop(name) for name in ("seed",) if name in body}
    try:
        with (
            openai.OpenAI(api_key="none", base_url=base_url, max_retries=0) as client,
            client.audio.speech.with_streaming_response.create(**body, extra_body=extra) as answer,
        ):
            return b"".join(answer.iter_bytes())
    except Exception as error:  # of its bundled library
        raise Broken from error


def read_urllib(url: str, body: dict[str, Any]) -> bytes:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as response:
            return bytes(response.read())
    except (http.client.HTTPException, OSError) as error:
        raise Broken from error


def read_requests(url: str, body: dict[str, Any]) -> bytes:
    requests = pytest.importorskip("requests")
    try:
        with requests.post(url, json=body, timeout=LIMIT_S, stream=True) as response:
            return bytes(response.content)
    except requests.RequestException as error:
        raise Broken from error


def read_aiohttp(url: str, body: dict[str, Any]) -> bytes:
    aiohttp = pytest.importorskip("aiohttp")

    async def read() -> bytes:
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
            return bytes(await response.read())

    try:
        return asyncio.run(read())
    except aiohttp.ClientError as error:
        raise Broken from error


def read_curl(url: str, body: dict[str, Any], *options: str) -> bytes:
    if shutil.which("curl") is None:
        pytest.skip("curl is needed")
    headers = ("-H", "content-type: application/json", "-d", json.dumps(body))
    done = subprocess.run(
        ["curl", "-sS", *options, *headers, url], capture_output=True, check=False
    )
    if done.returncode:
        raise Broken(done.stderr.decode())
    return done.stdout


def read_curl_1_0(url: str, body: dict[str, Any]) -> bytes:
    return read_curl(url, body, "--http1.0")


def read_ffmpeg(url: str, body: dict[str, Any]) -> bytes:
    """Pipe curl into ffmpeg, as in the guides; the pipe fails if curl fails."""
    ffmpeg = pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe()
    if shutil.which("curl") is None or body.get("stream_format") == "sse":
        pytest.skip("curl and audio are needed")
    script = (
        'set -o pipefail; curl -sS -H "content-type: application/json" -d "$1" "$2" | '
        '"$0" -v error -f s16le -ar 24000 -i - -f s16le -'
    )
    command = ["bash", "-c", script, ffmpeg, json.dumps(body), url]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise Broken(done.stderr.decode())
    return done.stdout


Reader = Callable[[str, dict[str, Any]], bytes]
READERS: tuple[Reader, ...] = (
    *(read_httpx, read_openai, read_urllib, read_requests, read_aiohttp),
    *(read_curl, read_curl_1_0, read_ffmpeg),
)


def count_accepted(
    server: Running, read: Reader, fields: dict[str, Any], at: tuple[int, ...]
) -> int:
    """Return how many truncated speeches the client accepts as complete."""
    url, num_taken = f"{server.url}/v1/audio/speech", 0
    body = {"input": "Hello.", "response_format": "pcm", **fields}
    whole = read(url, body)
    assert len(whole) > NUM_FRAMES * 100  # a complete speech is accepted in every format
    for position in at:
        try:
            read(url, {**body, "seed": 100 + position})
            num_taken += 1
        except Broken:
            pass
    return num_taken


@pytest.mark.parametrize("stream_format", ["audio", "sse"])
@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_client_detects_a_truncated_response(
    server: Running, read: Reader, stream_format: str
) -> None:
    assert count_accepted(server, read, {"stream_format": stream_format}, FEW) == 0


@pytest.mark.parametrize("format", ["mp3", "opus", "aac", "flac", "wav"])
def test_truncated_response_of_every_format_is_visible(server: Running, format: str) -> None:
    assert count_accepted(server, read_httpx, {"response_format": format}, FEW) == 0


@pytest.mark.slow
@pytest.mark.parametrize("stream_format", ["audio", "sse"])
@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_client_detects_a_truncation_at_any_position(
    server: Running, read: Reader, stream_format: str
) -> None:
    num_taken = count_accepted(server, read, {"stream_format": stream_format}, MANY)
    name = f"G12 {read.__name__.removeprefix('read_')} {stream_format}"
    record(name, positions=len(MANY), taken_for_whole=num_taken)
    assert num_taken == 0


# -- socket clients ------------------------------------------------------------------------------


def accepts_as_complete(server: Running, protocol: str) -> bool:
    """Whether the client receives the final message of its protocol without an error before."""
    talk = TALKS[protocol]
    words, num_bytes = list[str](), 0
    try:
        with connect(f"ws{server.url[4:]}{talk.path}", proxy=None, max_size=None) as opened:
            for message in (talk.config, talk.text, *talk.done):
                opened.send(json.dumps(message))
            while not words or talk.last not in words[-1]:
                answer = opened.recv(LIMIT_S)
                num_bytes += len(answer)
                if isinstance(answer, str):
                    words.append(answer.replace(" ", ""))
    except ConnectionClosed as closed:
        return closed.rcvd is not None and closed.rcvd.code == 1000
    messages = [json.loads(each) for each in words]
    is_refused = any(each.get("type") == "error" or each.get("error") for each in messages)
    is_failed = messages[-1].get("response", {}).get("status") == "failed"
    assert num_bytes > FRAME_BYTES or is_refused or is_failed
    return not (is_refused or is_failed)


SOCKETS = ("omni", "elevenlabs", "realtime")


@pytest.mark.parametrize("protocol", SOCKETS)
@pytest.mark.parametrize(
    "positions", [FEW, pytest.param(MANY, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_truncated_socket_speech_is_visible(
    server: Running,
    backend: ScriptedSpeech,
    monkeypatch: pytest.MonkeyPatch,
    protocol: str,
    positions: tuple[int, ...],
) -> None:
    assert accepts_as_complete(server, protocol)  # a complete speech is accepted
    num_taken = 0
    for position in positions:
        monkeypatch.setattr(backend, "default", Plan(NUM_FRAMES, fails_at=position))
        num_taken += accepts_as_complete(server, protocol)
    if positions is MANY:
        record(f"G12 {protocol}", positions=len(positions), taken_for_whole=num_taken)
    assert num_taken == 0


# -- the controls --------------------------------------------------------------------------------


CONTROLS = [
    read if read is read_httpx else pytest.param(read, marks=pytest.mark.slow) for read in READERS
]


send_chunks = PreparedSpeech._send_chunks


async def end_cleanly(
    speech: PreparedSpeech, open_stream: OpenStream, report: SpeechReport, sink: SpeechSink
) -> tuple[bytes, Words]:
    """End the body cleanly, like a framework whose iterator stops."""
    try:
        return await send_chunks(speech, open_stream, report, sink)
    except NumericError:
        return b"", ()


@pytest.mark.parametrize("stream_format", ["audio", "sse"])
@pytest.mark.parametrize("read", CONTROLS, ids=lambda read: read.__name__)
def test_control_client_accepts_a_truncation_with_a_clean_end(
    server: Running, monkeypatch: pytest.MonkeyPatch, read: Reader, stream_format: str
) -> None:
    monkeypatch.setattr(PreparedSpeech, "_send_chunks", end_cleanly)
    assert count_accepted(server, read, {"stream_format": stream_format}, (8, 16)) == 2


@pytest.mark.parametrize("protocol", SOCKETS)
def test_control_socket_client_accepts_a_truncation_with_a_clean_end(
    server: Running, backend: ScriptedSpeech, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    monkeypatch.setattr(PreparedSpeech, "_send_chunks", end_cleanly)
    monkeypatch.setattr(backend, "default", Plan(NUM_FRAMES, fails_at=16))
    assert accepts_as_complete(server, protocol)
