"""`vivace serve --workers 2` with real processes: identical audio, kills, drain and limits."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from http.client import HTTPConnection
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from tests.support.served_process import LIMIT_S
from tests.support.serving import Running
from tests.support.websocket_client import finish_speech, unfinished_speech
from tests.support.workers import (
    WorkerServer,
    get_status,
    is_running,
    wait_for,
    workers,
)
from vivace.cli.main import main

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(sys.platform != "linux", reason="several workers need Linux"),
]

TEXT = "It was a bright cold day in April."
LONG = 200  # sentences: minutes of audio, which no test waits for
BODIES: list[dict[str, Any]] = [
    {"response_format": "pcm"},
    {"response_format": "wav", "stream": False},
    {"response_format": "mp3"},
    {"response_format": "flac", "speed": 1.1},
    {"response_format": "aac", "stream": False},
    {"response_format": "pcm", "stream_format": "sse", "word_timestamps": True},
]
MAX_REQUESTS = 300  # per minute and client address
OTHER_ADDRESS = "127.0.0.2"  # of this machine, too
TIMES = ("audible_ms", "first_audio_ms", "wall_s")  # fields that differ from run to run


def speak(url: str, **fields: Any) -> httpx.Response:
    body = {"input": TEXT, "voice": "alloy", "seed": 5, "max_new_tokens": 24, **fields}
    return httpx.post(f"{url}/v1/audio/speech", json=body, timeout=LIMIT_S)


def speak_live(url: str) -> bytes:
    """Live text over a WebSocket."""
    address = f"{url.replace('http', 'ws')}/v1/audio/speech/stream"
    with connect(address, open_timeout=LIMIT_S, close_timeout=LIMIT_S) as client:
        config = {"type": "session.config", "voice": "alloy", "seed": 5}
        client.send(json.dumps({**config, "response_format": "pcm"}))
        for word in TEXT.split(" "):
            client.send(json.dumps({"type": "input.text", "text": f"{word} "}))
        client.send(json.dumps({"type": "input.done"}))
        audio = b""
        while True:
            message = client.recv(LIMIT_S)
            if isinstance(message, bytes):
                audio += message
            elif json.loads(message)["type"] in ("session.done", "error"):
                assert json.loads(message)["type"] == "session.done", message
                return audio


def comparable(answer: httpx.Response) -> Any:
    """The content without the times that differ from run to run."""
    if "event-stream" not in answer.headers["content-type"]:
        return answer.content
    lines = answer.text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    for event in events:
        for part in (event, event.get("usage") or {}):
            for name in TIMES:
                part.pop(name, None)
    return events


@pytest.fixture(scope="module")
def served() -> Iterator[WorkerServer]:
    """Two workers that tests share: their three processes need seconds to start."""
    with workers(f"--max-requests-per-minute={MAX_REQUESTS}") as served:
        yield served
        served.process.send_signal(signal.SIGTERM)
        assert served.end() == 0


def test_audio_of_two_workers_is_that_of_one_process(server: Running, served: WorkerServer) -> None:
    num_streams = served.metric("vivace_streams_total", missing=0) + len(BODIES) + 1
    num_frames = served.metric("vivace_frames_total", missing=0) + 24 * len(BODIES)
    for fields in BODIES:
        expected, found = speak(server.url, **fields), speak(served.url, **fields)
        assert (expected.status_code, found.status_code) == (200, 200), found.text
        assert comparable(found) == comparable(expected), fields
    assert speak_live(served.url) == speak_live(server.url)
    assert speak(served.url, voice="nobody").json() == speak(server.url, voice="nobody").json()
    lists = [httpx.get(f"{url}/v1/audio/voices").json() for url in (served.url, server.url)]
    assert lists[0] == lists[1]
    wait_for(lambda: served.metric("vivace_streams_total") == num_streams)
    wait_for(lambda: served.metric("vivace_frames_total") > num_frames)  # of the engine
    accept = {"accept": "application/openmetrics-text"}
    assert httpx.get(f"{served.url}/metrics", headers=accept).text.endswith("# EOF\n")


def stream_body(num_sentences: int) -> dict[str, Any]:
    text = " ".join([TEXT] * num_sentences)
    return {"input": text, "voice": "alloy", "seed": 5, "response_format": "pcm"}


@contextmanager
def stream(
    url: str,
    num_sentences: int,
    client: httpx.Client | None = None,
    headers: Mapping[str, str] | None = None,
) -> Iterator[Iterator[bytes]]:
    """The audio of a stream after its first part."""
    with (
        closing(client or httpx.Client(timeout=LIMIT_S)) as connected,
        connected.stream(
            "POST", f"{url}/v1/audio/speech", json=stream_body(num_sentences), headers=headers
        ) as answer,
    ):
        assert answer.status_code == 200
        parts = answer.iter_raw()
        next(parts)
        yield parts


def connect_to_every_worker(served: WorkerServer) -> dict[int, httpx.Client]:
    """A client with an open connection for each of two workers."""
    clients: dict[int, httpx.Client] = {}
    while len(clients) < 2:
        client = httpx.Client(timeout=LIMIT_S)
        with client.stream("GET", f"{served.url}/health/live") as answer:
            port = answer.extensions["network_stream"].get_extra_info("client_addr")[1]
            worker = served.worker_of(port)
            answer.read()
        if worker in clients:
            client.close()
            time.sleep(0.05)  # the other one may be starting
        else:
            clients[worker] = client
    return clients


def wait_for_workers(served: WorkerServer, status: int) -> None:
    """Wait for this readiness of every worker: one notices a change later than the other."""
    for client in connect_to_every_worker(served).values():
        with closing(client):
            wait_for(partial(is_answer, client, f"{served.url}/health/ready", status))


def is_answer(client: httpx.Client, url: str, status: int) -> bool:
    return client.get(url).status_code == status


def get_quickly(connection: HTTPConnection, path: str) -> int:
    """Status code of a GET request, with a tenth of the CPU time that httpx takes."""
    connection.request("GET", path)
    with connection.getresponse() as answer:
        answer.read()
    return answer.status


def test_rate_limit_holds_for_all_workers(served: WorkerServer) -> None:
    host, _, port = served.url.rpartition("/")[2].partition(":")
    connections: dict[int, HTTPConnection] = {}
    while len(connections) < 2:
        one = HTTPConnection(host, int(port), LIMIT_S, source_address=(OTHER_ADDRESS, 0))
        assert get_quickly(one, "/health/live") == 200
        worker = served.worker_of(one.sock.getsockname()[1])
        if worker in connections:
            one.close()
        else:
            connections[worker] = one
    began = time.monotonic()
    used = itertools.cycle(connections.values())
    num_served = sum(1 for _ in iter(lambda: get_quickly(next(used), "/v1"), 429))
    num_refilled = (time.monotonic() - began) * MAX_REQUESTS / 60
    assert MAX_REQUESTS <= num_served <= MAX_REQUESTS + 1 + num_refilled
    for one in connections.values():
        one.close()


def test_killed_worker_loses_only_its_own_streams(served: WorkerServer) -> None:
    engine, url = served.engine, served.url
    num_before = served.metric('vivace_http_requests_total{route="/metrics"')
    num_streams = served.metric('vivace_streams_total{model="vivace"', missing=0) + 1
    (victim, first), (_, second) = connect_to_every_worker(served).items()
    assert victim != engine
    with stream(url, 2, second) as kept, stream(url, LONG, first) as lost:
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(httpx.HTTPError):
            for _ in lost:
                pass
        assert sum(map(len, kept)) > 0  # httpx raises an error for a truncated body
    wait_for(lambda: len(served.children) == 3 and victim not in served.children)
    wait_for(lambda: served.metric("vivace_running_streams") == 0)  # cancelled in the engine
    assert served.engine == engine
    assert served.metric('vivace_http_requests_total{route="/metrics"') > num_before
    wait_for(lambda: served.metric('vivace_streams_total{model="vivace"') == num_streams)


def kill_engine(served: WorkerServer, engine: int) -> None:
    """Kill the engine's process while one stream runs."""
    with stream(served.url, LONG) as parts:
        os.kill(engine, signal.SIGKILL)
        with pytest.raises(httpx.HTTPError):
            for _ in parts:
                pass


@contextmanager
def suspended(process: subprocess.Popen[str]) -> Iterator[None]:
    """Stop a process; the supervisor restarts no other one meanwhile."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def answer_of(url: str, num_sentences: int = 1) -> tuple[int, str]:
    """Status and error code of a speech; (0, "") from a worker that has just stopped."""
    body = stream_body(num_sentences)
    try:
        answer = httpx.post(f"{url}/v1/audio/speech", json=body, timeout=LIMIT_S)
    except httpx.TransportError:
        return 0, ""
    is_speech = answer.status_code == 200
    return answer.status_code, "" if is_speech else answer.json()["error"]["code"]


def test_killed_engine_is_restarted_and_a_drain_finishes_streams(served: WorkerServer) -> None:
    """The last test of `served`: the drain ends the server."""
    url, engine = served.url, served.engine
    with suspended(served.process):
        kill_engine(served, engine)
        wait_for_workers(served, 503)
        assert answer_of(url) == (503, "loading")
        assert get_status(f"{url}/health/live") == 200
    wait_for_workers(served, 200)
    assert answer_of(url) == (200, "")
    wait_for(lambda: served.metric("vivace_engine_deaths_total") == 1)
    assert engine not in served.children
    with suspended(served.process):
        kill_engine(served, served.engine)
        wait_for_workers(served, 503)
    wait_for_workers(served, 200)
    assert answer_of(url, LONG)[1] == "quarantined"  # in flight at two kills
    with unfinished_speech(url, TEXT) as talk:
        served.process.send_signal(signal.SIGTERM)
        served.wait_for(r"finishing (1 stream), up to 30 s")  # a further speech would be counted
        wait_for(lambda: get_status(f"{url}/health/ready") == 503)
        wait_for(lambda: answer_of(url) == (503, "draining"))
        assert finish_speech(talk)
    assert served.end() == 0
    assert "stopped" in served.output


@pytest.mark.slow  # in parts: the rate limit above, test_shared_counts.py and test_control.py
def test_limits_and_keys_hold_for_all_workers_and_no_process_is_left() -> None:
    key = {"authorization": "Bearer k3y"}
    flags = ["--max-streams=1", "--max-queue=0", "--max-requests-per-minute=30"]
    with workers(*flags, "--api-key-env=MY_KEY", MY_KEY="k3y") as served:
        url = served.url
        answers = [httpx.get(f"{url}/v1/models").status_code for _ in range(6)]
        assert answers == [401] * 6

        def ask(_: int) -> httpx.Response:
            body = stream_body(1)
            return httpx.post(f"{url}/v1/audio/speech", json=body, headers=key, timeout=LIMIT_S)

        began = time.monotonic()
        with stream(url, LONG, headers=key), ThreadPoolExecutor(8) as threads:
            found = list(threads.map(ask, range(8)))
        assert [one.status_code for one in found] == [429] * 8  # in whichever worker
        assert {one.json()["error"]["code"] for one in found} == {"queue_full"}
        num_served = 9
        while httpx.get(f"{url}/v1", headers=key).status_code != 429:
            num_served += 1
        num_refilled = (time.monotonic() - began) * 30 / 60
        assert 30 <= num_served <= 31 + num_refilled
        children = served.children
        assert len(children) == 3
        served.process.kill()
        wait_for(lambda: not any(map(is_running, children)))


def test_port_of_another_server_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as another server's worker
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", f"--port={port}", "--workers=2"]) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
