"""Mixed traffic for the soak: speech in every protocol, disconnects, bad input and slow readers.

Each kind of traffic is one conversation with the server. It returns None, or a description of the
fault: a 5xx status, no response, or incomplete speech.
"""

from __future__ import annotations

import base64
import io
import json
import random
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from http.client import HTTPConnection, HTTPException
from types import SimpleNamespace
from typing import Any

import numpy as np
import soundfile
from websockets.exceptions import WebSocketException

from tests.support.disconnecting_clients import PROTOCOLS, Exchange

LIMIT_S = 120.0  # a longer conversation counts as hung
SPEECH = "/v1/audio/speech"
TEXTS = ("Yes.", "No.", "Hi.", "Thanks.", "It's 5:30.", "Well, well!")
LONG = "This goes on for a while, and nobody reads it in a hurry. " * 4
FORMATS = ("pcm", "wav", "flac", "mp3", "opus", "aac")
LEAVING = ("connected", "begun", "configured", "asked", "waited", "first")
PAGES = ("/", "/health", "/health/ready", "/metrics", "/v1/models", "/v1/audio/voices", "/nothing")
RATE = 24_000
RECORDINGS = ("WAV", "FLAC", "OGG", "MP3")


@dataclass(frozen=True)
class Remote:
    """A server in another process, for the clients of `disconnecting_clients`."""

    port: int
    wyoming_port: int
    can_clone: bool = False  # has a model named `tiny`

    @property
    def server(self) -> Any:
        return SimpleNamespace(wyoming_url=f"tcp://127.0.0.1:{self.wyoming_port}")


Kind = Callable[[Remote, random.Random], str | None]


def ask(
    remote: Remote, method: str, path: str, body: Any = None, kind: str = "application/json"
) -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", remote.port, timeout=LIMIT_S)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        headers = {"connection": "close"} | ({"content-type": kind} if body is not None else {})
        connection.request(method, path, content if body is not None else None, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()  # raises IncompleteRead if the body is truncated
    finally:
        connection.close()


def some_speech(chance: random.Random, **fields: Any) -> dict[str, Any]:
    most = chance.choice((1, 2, 4, 8, None))
    limit = {} if most is None else {"max_new_tokens": most}
    return {"input": chance.choice(TEXTS), "voice": "alloy", **limit, **fields}


def speak(remote: Remote, chance: random.Random) -> str | None:
    format, is_streamed = chance.choice(FORMATS), chance.random() < 0.5
    body = some_speech(chance, response_format=format, stream=is_streamed)
    status, audio = ask(remote, "POST", SPEECH, body)
    if status != 200 or len(audio) < 400:
        return f"{format}: {status} with {len(audio)} bytes"
    return None


def speak_events(remote: Remote, chance: random.Random) -> str | None:
    body = some_speech(chance, response_format="pcm", stream_format="sse")
    status, events = ask(remote, "POST", SPEECH, body)
    is_whole = status == 200 and b"speech.audio.done" in events
    return None if is_whole else f"events: {status}, {events[-80:]!r}"


def talk(remote: Remote, chance: random.Random) -> str | None:
    """Speak over a socket protocol or Wyoming until the end."""
    names = sorted(set(PROTOCOLS) - {"http", "http-sse", "http-whole"})
    PROTOCOLS[chance.choice(names)](remote, "ended")(chance.random() < 0.2)  # type: ignore[arg-type]
    return None


def leave(remote: Remote, chance: random.Random) -> str | None:
    exchange = Exchange(
        chance.choice(sorted(PROTOCOLS)), chance.choice(LEAVING), is_reset=chance.random() < 0.5
    )
    exchange.go(remote)  # type: ignore[arg-type]
    return None


def fetch_page(remote: Remote, chance: random.Random) -> str | None:
    path = chance.choice(PAGES)
    status, _ = ask(remote, "GET", path)
    return None if status == (404 if path == "/nothing" else 200) else f"GET {path}: {status}"


@cache
def recording(format: str, seconds: float) -> str:
    """Speak with a recording in base64."""
    file = io.BytesIO()
    noise = np.random.default_rng(1).normal(0, 0.1, int(RATE * seconds)).astype(np.float32)
    soundfile.write(file, noise, RATE, format=format)
    return base64.b64encode(file.getvalue()).decode()


def make_voice(remote: Remote, chance: random.Random) -> str | None:
    """Create a voice, speak with it and delete it. Refused if no model can clone."""
    name = f"soak-{chance.randrange(10**12)}"
    sample = recording(chance.choice(RECORDINGS), 1.5)
    made, _ = ask(remote, "POST", "/v1/audio/voices", {"name": name, "audio_sample": sample})
    if not remote.can_clone:
        return None if 400 <= made < 500 else f"a voice: {made}"
    body = {"input": "Hi.", "model": "tiny", "voice": name, "max_new_tokens": 3}
    spoken, _ = ask(remote, "POST", SPEECH, body)
    deleted, _ = ask(remote, "DELETE", f"/v1/audio/voices/{name}")
    statuses = (made, spoken, deleted)
    return None if statuses == (200, 200, 200) else f"a voice: {statuses}"


def send_bad(remote: Remote, chance: random.Random) -> str | None:
    """Send an invalid request; expect a status of 400 to 499."""
    body: Any = chance.choice(
        (
            {"input": ""},
            {"input": "Hi.", "voice": "nobody"},
            {"input": "Hi.", "response_format": "vinyl"},
            {"input": "x" * 70_000},
            {"input": "Hi.", "speed": 1e9},
            {"input": "Hi.", "seed": "seven"},
            b"{" * 2_000,
            b"\xff\xfe\x00",
            {"ref_audio": "data:audio/wav;base64,AAAA", "input": "Hi."},
        )
    )
    path = SPEECH
    if chance.random() < 0.3:
        path = "/v1/audio/voices"
        body = {"name": "soak", "audio_sample": recording(chance.choice(RECORDINGS), 0.2)}
    status, _ = ask(remote, "POST", path, body)
    return None if 400 <= status < 500 else f"bad input to {path}: {status}"


def send_noise(remote: Remote, chance: random.Random) -> str | None:
    """Send random bytes to either port and read the response."""
    port = chance.choice((remote.port, remote.wyoming_port))
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as connection:
        try:
            connection.sendall(chance.randbytes(chance.randint(1, 4_000)) + b"\r\n\r\n")
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(65_536)
            while connection.recv(65_536):
                pass
        except ConnectionError:
            return None
    return "noise: a 5xx" if answer.startswith(b"HTTP/1.1 5") else None


def read_slowly(remote: Remote, chance: random.Random) -> str | None:
    """Read slowly with a small buffer, then disconnect."""
    body = json.dumps({"input": LONG, "response_format": "pcm", "max_new_tokens": 16}).encode()
    head = (
        b"POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    )
    with socket.socket() as connection:
        connection.settimeout(LIMIT_S)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.connect(("127.0.0.1", remote.port))
        connection.sendall(head + b"content-length: %d\r\n\r\n%b" % (len(body), body))
        for _ in range(chance.randint(1, 20)):
            if not connection.recv(512):
                return "a slow reader was disconnected"
            time.sleep(0.1)
    return None


def send_slow_headers(remote: Remote, chance: random.Random) -> str | None:
    """Send headers byte by byte; some connections stay until the server aborts them."""
    waits_for_abort = chance.random() < 0.2
    with socket.create_connection(("127.0.0.1", remote.port), LIMIT_S) as connection:
        try:
            connection.sendall(b"POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\nx-slow: ")
            for _ in range(240 if waits_for_abort else 8):
                connection.sendall(b"x")
                time.sleep(0.25)
        except ConnectionError:
            return None
    return "headers that took 60 s were not aborted" if waits_for_abort else None


KINDS: dict[str, tuple[Kind, float]] = {  # with their relative frequencies
    "speak": (speak, 0.22),
    "events": (speak_events, 0.10),
    "talk": (talk, 0.03),
    "leave": (leave, 0.30),
    "look": (fetch_page, 0.14),
    "voice": (make_voice, 0.03),
    "bad": (send_bad, 0.07),
    "noise": (send_noise, 0.05),
    "slow reader": (read_slowly, 0.05),
    "slow_headers": (send_slow_headers, 0.01),
}


def run_random_conversation(remote: Remote, chance: random.Random) -> tuple[str, str | None]:
    """Run a random conversation; return its kind and its fault."""
    (name,) = chance.choices(list(KINDS), [share for _, share in KINDS.values()])
    return name, run_conversation(name, remote, chance)


def run_conversation(name: str, remote: Remote, chance: random.Random) -> str | None:
    try:
        return KINDS[name][0](remote, chance)
    except (OSError, HTTPException, WebSocketException, AssertionError) as error:
        return f"{name}: {error!r}"[:200]
