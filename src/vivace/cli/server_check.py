"""`vivace doctor --url`: sends typical client requests to a running server and checks responses."""

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

from vivace.cli.command import given_options
from vivace.cli.streams import print_json, print_stdout, printable
from vivace.errors import RequestError, TTSError
from vivace.speech import SAMPLE_RATE

SENTENCE = "This sentence checks the speech of the server."
MIN_PEAK = 32  # of 32,768; quieter audio counts as silence
PCM = {"input": SENTENCE, "response_format": "pcm"}
OK = 200
OPTIONS_OF = {  # options that have no effect without another one
    "url": ("--voice", "--api-key-env", "--timeout"),
    "model": (
        *("--revision", "--offline", "--device", "--dtype", "--weights", "--backend"),
        "--threads",
    ),
}


class CheckError(Exception):
    """A response of the server is not as expected."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    name: str
    is_ok: bool
    note: str


def doctor(arguments: argparse.Namespace) -> int:
    _check_options(arguments)
    if arguments.url is None:
        from vivace.cli.doctor import doctor as check_machine  # imports torch

        check_machine(arguments)
        return 0
    client = Client.of(arguments)
    results = []
    for name, check in CHECKS:
        results.append(_run_check(name, check, client))
        if not arguments.json:
            state = "ok" if results[-1].is_ok else "FAILED"
            print_stdout(f"{state:<7} {name:<12} {results[-1].note}")
        if name == "live" and not results[0].is_ok:
            break  # the server cannot be reached
    num_failed = sum(not result.is_ok for result in results)
    if arguments.json:
        checks = {result.name: {"ok": result.is_ok, "note": result.note} for result in results}
        print_json({"url": arguments.url, "checks": checks}, indent=2)
    else:
        summary = f"{num_failed} of {len(results)} checks failed"
        print_stdout(summary if num_failed else f"all {len(results)} checks passed")
    return 1 if num_failed else 0


def _check_options(arguments: argparse.Namespace) -> None:
    """Reject options that have no effect."""
    if arguments.url is not None and arguments.model is not None:
        arguments.fail("--url checks a server and --model a model; omit one of them")
    for needed, flags in OPTIONS_OF.items():
        given = given_options(arguments, flags)
        if getattr(arguments, needed) is None and given:
            arguments.fail(f"{', '.join(given)}: no effect without --{needed}")


def _run_check(name: str, check: Callable[[Client], str], client: Client) -> CheckResult:
    try:
        return CheckResult(name, True, printable(check(client)))
    except CheckError as error:
        return CheckResult(name, False, printable(error))
    except ConnectionRefusedError:
        note = f"no server listens at {client.url}; start it with `vivace serve`"
        return CheckResult(name, False, printable(note))
    except (OSError, HTTPException, ValueError, TTSError) as error:
        return CheckResult(name, False, printable(f"{type(error).__name__}: {error}"))


class Client:
    """An HTTP client with one connection per request."""

    def __init__(self, url: str, key: str | None, voice: str | None, timeout_s: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RequestError(f"--url must be http://HOST:PORT or https://HOST, not {url!r}")
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
    def request(self, path: str, body: dict[str, Any] | None = None) -> Iterator[HTTPResponse]:
        """Send GET, or POST with `body`. The body of the response is unread."""
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        connection = self._kind(self._host, self._port, timeout=self.timeout_s)
        with closing(connection):
            if body is None:
                connection.request("GET", self._path + path, headers=headers)
            else:
                headers["Content-Type"] = "application/json"
                fields = json.dumps({"model": "tts-1", **self.voice, **body})
                connection.request("POST", self._path + path, fields, headers)
            with connection.getresponse() as response:
                yield response

    def read(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        """The body of a response with status 200. CheckError for any other status."""
        with self.request(path, body) as response:
            content = response.read()
            if response.status != OK:
                raise CheckError(f"{path}: status {response.status}: {_message(content)}")
            return content

    def speak(self, fields: dict[str, Any]) -> Iterator[tuple[float, bytes]]:
        """Parts of the body with the seconds since the request."""
        began = time.perf_counter()
        with self.request("/v1/audio/speech", PCM | fields) as response:
            if response.status != OK:
                raise CheckError(
                    f"/v1/audio/speech: status {response.status}: {_message(response.read())}"
                )
            while part := response.read1(65_536):
                yield time.perf_counter() - began, part


def _message(content: bytes) -> str:
    try:
        return str(json.loads(content)["error"]["message"])[:200]
    except (ValueError, KeyError, TypeError):
        return content[:80].decode("utf-8", "replace")


# -- checks ------------------------------------------------------------------------------------


def check_live(client: Client) -> str:
    client.read("/health/live")
    return f"{client.url} responds"


def check_ready(client: Client) -> str:
    with client.request("/health/ready") as response:
        body = response.read()[:200].decode("utf-8", "replace")
        if response.status != OK:
            raise CheckError(f"not ready: {body}")
    return "all models are ready"


def check_models(client: Client) -> str:
    names = [model["id"] for model in json.loads(client.read("/v1/models"))["data"]]
    if not names:
        raise CheckError("the server has no models")
    return ", ".join(names)


def check_voices(client: Client) -> str:
    names = [voice["id"] for voice in json.loads(client.read("/v1/audio/voices"))["voices"]]
    if not names:
        raise CheckError("the server has no voices; add one with POST /v1/audio/voices")
    return f"{len(names)}: {', '.join(names[:8])}{' …' if len(names) > 8 else ''}"


def check_speech(client: Client) -> str:
    parts = list(client.speak({}))
    if not parts:
        raise CheckError("the response has no audio")
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
        raise CheckError(f"the last event is {kinds[-1:] or 'missing'}, not speech.audio.done")
    deltas = [event["audio"] for event in events if event["type"] == "speech.audio.delta"]
    audio_s = _check_sound(b"".join(map(base64.b64decode, deltas)))
    return f"{len(deltas)} audio events, {audio_s:.1f} s of audio"


def check_socket(client: Client) -> str:
    from vivace.integrations.server import ServerSource  # imports websockets

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
        raise CheckError(f"the speech did not end within {client.timeout_s:g} s") from None
    return f"first audio after {1000 * first_s:.0f} ms, {_check_sound(content):.1f} s of audio"


def check_error(client: Client) -> str:
    with client.request("/v1/audio/speech", {"input": ""}) as response:
        content = response.read()
        if response.status != 400:
            raise CheckError(f"status {response.status} for an empty input; expected 400")
        request_id = response.headers.get("x-request-id")
    error = json.loads(content).get("error")
    if not isinstance(error, dict) or not {"message", "type", "param", "code"} <= error.keys():
        raise CheckError(f"the error does not have the fields of OpenAI: {content[:80]!r}")
    if error["param"] != "input" or not request_id:
        raise CheckError(
            f"expected param 'input' and an x-request-id, not {error['param']!r} and {request_id!r}"
        )
    return f"400, {error['code']}: {error['message']}"


def _check_sound(content: bytes) -> float:
    """Seconds of 16-bit audio. CheckError if it is silent."""
    samples = array.array("h", content[: len(content) // 2 * 2])
    if not samples or max(max(samples), -min(samples)) < MIN_PEAK:
        raise CheckError(f"the audio is silent ({len(samples)} samples)")
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
