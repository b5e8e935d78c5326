"""Wherever a speech breaks off and whatever reads it: nobody takes a part for the whole (G12)."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from scripted_tts import Plan, ScriptedSpeech
from serving import Running, running

from vivace.serve.settings import ServeSettings

NUM_FRAMES = 40
POSITIONS = (1, 2, 3, 5, 8, 16, 25, 39, 40)  # frames after which the speech fails


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    plans = {100 + at: Plan(NUM_FRAMES, fails_at=at) for at in POSITIONS}
    backend = ScriptedSpeech(plans=plans, default=Plan(NUM_FRAMES))
    voices: Path = tmp_path_factory.mktemp("voices")
    with running(ServeSettings(port=0, voices=voices), backend.load) as server:
        yield server


class Broken(Exception):
    """The client says that something went wrong."""


def read_httpx(url: str, body: dict[str, Any]) -> bytes:
    try:
        return httpx.post(url, json=body, verify=False, timeout=30).content
    except httpx.HTTPError as error:
        raise Broken from error


def read_urllib(url: str, body: dict[str, Any]) -> bytes:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return bytes(response.read())
    except (http.client.HTTPException, OSError) as error:
        raise Broken from error


def read_requests(url: str, body: dict[str, Any]) -> bytes:
    requests = pytest.importorskip("requests")
    try:
        return bytes(requests.post(url, json=body, timeout=30).content)
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


READERS = (read_httpx, read_urllib, read_requests, read_aiohttp, read_curl, read_curl_1_0)
Reader = Callable[[str, dict[str, Any]], bytes]


@pytest.mark.parametrize("stream_format", ["audio", "sse"])
@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_no_client_takes_a_part_for_the_whole(
    server: Running, read: Reader, stream_format: str
) -> None:
    url = f"{server.url}/v1/audio/speech"
    body = {"input": "Hello.", "response_format": "pcm", "stream_format": stream_format}
    assert len(read(url, body)) >= NUM_FRAMES * 1_920 * 2  # the control: a whole one is read
    positions = POSITIONS if read is read_httpx else POSITIONS[::3]
    for position in positions:
        with pytest.raises(Broken):
            read(url, {**body, "seed": 100 + position})


@pytest.mark.parametrize("format", ["mp3", "opus", "aac", "flac", "wav"])
def test_no_format_ends_well_in_the_middle(server: Running, format: str) -> None:
    url = f"{server.url}/v1/audio/speech"
    body = {"input": "Hello.", "response_format": format}
    assert read_httpx(url, body)
    for position in (1, 16, 40):
        with pytest.raises(Broken):
            read_httpx(url, {**body, "seed": 100 + position})
