"""`vivace doctor --url`: asks a running server what a client would ask; without it, `doctor`."""

from __future__ import annotations

import argparse
import array
import asyncio
import base64
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from vivace.cli.streams import plain, put
from vivace.errors import RequestError, TTSError
from vivace.speech import SAMPLE_RATE

SENTENCE = "This sentence was spoken to see whether the server is well."
SILENT = 32  # of 32,768: no sample of speech is louder
PCM = {"input": SENTENCE, "response_format": "pcm"}
OK = 200


class Finding(Exception):
    """What is wrong with an answer."""


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    is_ok: bool
    note: str


def doctor(arguments: argparse.Namespace) -> int:
    if arguments.url is None:
        from vivace.cli.doctor import doctor as examine_machine  # it imports torch

        examine_machine(arguments)
        return 0
    client = Client.of(arguments)
    results = []
    for name, check in CHECKS:
        results.append(_try(name, check, client))
        if not arguments.json:
            put(f"{'ok' if results[-1].is_ok else 'FAILED':<7} {name:<12} {results[-1].note}")
        if name == "live" and not results[0].is_ok:
            break  # there is nobody to ask
    if arguments.json:
        found = {one.name: {"ok": one.is_ok, "note": one.note} for one in results}
        put(json.dumps({"url": arguments.url, "checks": found}, indent=2))
    num_failed = sum(not one.is_ok for one in results)
    if not arguments.json:
        put(f"{num_failed} of {len(results)} checks failed" if num_failed else "all is well")
    return 1 if num_failed else 0


def _try(name: str, check: Callable[[Client], str], client: Client) -> Result:
    try:
        return Result(name, True, plain(check(client)))
    except Finding as finding:
        return Result(name, False, plain(str(finding)))
    except (OSError, HTTPException, ValueError, TTSError) as error:
        return Result(name, False, plain(f"{type(error).__name__}: {error}"))


class Client:
    """Plain HTTP, a connection for each request."""

    def __init__(self, url: str, key: str | None, voice: str | None, timeout_s: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RequestError(f"--url is http://HOST:PORT or https://HOST, not {url!r}")
        self.url, self.key, self.timeout_s = url.rstrip("/"), key, timeout_s
        self.voice = {} if voice is None else {"voice": voice}
        self._host, self._port, self._path = parts.hostname, parts.port, parts.path.rstrip("/")
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Client:
        keys = os.environ.get(arguments.api_key_env, "").split(",")
        key = keys[0].strip() or None
        return cls(arguments.url, key, arguments.voice, arguments.timeout)

    @contextmanager
    def ask(self, path: str, body: dict[str, Any] | None = None) -> Iterator[HTTPResponse]:
        """The answer, its body unread."""
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        connection = self._kind(self._host, self._port, timeout=self.timeout_s)
        with closing(connection):
            if body is None:
                connection.request("GET", self._path + path, headers=headers)
            else:
                headers["Content-Type"] = "application/json"
                fields = json.dumps({"model": "tts-1", **self.voice, **body})
                connection.request("POST", self._path + path, fields, headers)
            with connection.getresponse() as answer:
                yield answer

    def read(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        """The body of a 200; whatever else there is, is a finding."""
        with self.ask(path, body) as answer:
            content = answer.read()
            if answer.status != OK:
                raise Finding(f"{path} answered {answer.status}: {_message(content)}")
            return content

    def speak(self, fields: dict[str, Any]) -> Iterator[tuple[float, bytes]]:
        """Bytes as they come, each with the seconds since the request."""
        began = time.perf_counter()
        with self.ask("/v1/audio/speech", PCM | fields) as answer:
            if answer.status != OK:
                raise Finding(f"speech was refused: {answer.status} {_message(answer.read())}")
            while part := answer.read1(65_536):
                yield time.perf_counter() - began, part


def _message(content: bytes) -> str:
    try:
        return str(json.loads(content)["error"]["message"])[:200]
    except (ValueError, KeyError, TypeError):
        return content[:80].decode("utf-8", "replace")


# --- the checks -------------------------------------------------------------------------------


def check_live(client: Client) -> str:
    client.read("/health/live")
    return f"{client.url} answers"


def check_ready(client: Client) -> str:
    with client.ask("/health/ready") as answer:
        told = answer.read()[:200].decode("utf-8", "replace")
        if answer.status != OK:
            raise Finding(f"not ready: {told}")
    return "every model was probed"


def check_models(client: Client) -> str:
    names = [model["id"] for model in json.loads(client.read("/v1/models"))["data"]]
    if not names:
        raise Finding("no model is served")
    return ", ".join(names)


def check_voices(client: Client) -> str:
    names = [voice["id"] for voice in json.loads(client.read("/v1/audio/voices"))["voices"]]
    if not names:
        raise Finding("there are no voices; make one with POST /v1/audio/voices")
    return f"{len(names)}: {', '.join(names[:8])}{' …' if len(names) > 8 else ''}"


def check_speech(client: Client) -> str:
    parts = list(client.speak({}))
    if not parts:
        raise Finding("the speech has no audio")
    audio_s = _check_sound(b"".join(part for _, part in parts))
    first_s, last_s = parts[0][0], parts[-1][0]
    return (
        f"first byte after {1000 * first_s:.0f} ms, {audio_s:.1f} s of audio in {last_s:.2f} s: "
        f"{audio_s / last_s:.1f} times real time"
    )


def check_events(client: Client) -> str:
    body = b"".join(part for _, part in client.speak({"stream_format": "sse"}))
    lines = [line for line in body.decode("utf-8").splitlines() if line.startswith("data: ")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    kinds = [event["type"] for event in events]
    if kinds[-1:] != ["speech.audio.done"]:
        raise Finding(f"the events end with {kinds[-1:] or 'none'} and not speech.audio.done")
    deltas = [event["audio"] for event in events if event["type"] == "speech.audio.delta"]
    audio_s = _check_sound(b"".join(map(base64.b64decode, deltas)))
    return f"{len(deltas)} events of audio, {audio_s:.1f} s, and the end"


def check_socket(client: Client) -> str:
    from vivace.integrations.server import ServerSource  # it needs websockets

    async def speak() -> tuple[float, bytes]:
        source = ServerSource(client.url, api_key=client.key)
        began, first_s, content = time.perf_counter(), 0.0, b""
        try:
            async for sound in source.speak(SENTENCE, SAMPLE_RATE, **client.voice):
                first_s = first_s or time.perf_counter() - began
                content += sound.pcm
        finally:
            await source.aclose()
        return first_s, content

    try:
        first_s, content = asyncio.run(asyncio.wait_for(speak(), client.timeout_s))
    except asyncio.TimeoutError:
        raise Finding(f"no end of the speech within {client.timeout_s:g} s") from None
    return f"first audio after {1000 * first_s:.0f} ms, {_check_sound(content):.1f} s in all"


def check_error(client: Client) -> str:
    with client.ask("/v1/audio/speech", {"input": ""}) as answer:
        content = answer.read()
        if answer.status != 400:
            raise Finding(f"an empty input was answered with {answer.status}, not 400")
        request_id = answer.headers.get("x-request-id")
    error = json.loads(content).get("error")
    if not isinstance(error, dict) or not {"message", "type", "param", "code"} <= error.keys():
        raise Finding(f"the error has not OpenAI's shape: {content[:80]!r}")
    if error["param"] != "input" or not request_id:
        raise Finding(f"the error names {error['param']!r}, and its id is {request_id!r}")
    return f"400, {error['code']}: {error['message']}"


def _check_sound(content: bytes) -> float:
    """Seconds of 16-bit audio that is not silent."""
    samples = array.array("h", content[: len(content) // 2 * 2])
    if not samples or max(max(samples), -min(samples)) < SILENT:
        raise Finding(f"{len(samples)} samples came, and no sound")
    return len(samples) / SAMPLE_RATE


CHECKS: tuple[tuple[str, Callable[[Client], str]], ...] = (
    ("live", check_live),
    ("ready", check_ready),
    ("models", check_models),
    ("voices", check_voices),
    ("speech", check_speech),
    ("events", check_events),
    ("websocket", check_socket),
    ("bad request", check_error),
)
