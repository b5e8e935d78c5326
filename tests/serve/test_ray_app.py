"""Two replicas behind Ray Serve's proxy: real clients, a kill, a rolling restart, shared voices.

Run by hand: `pip install '.[ray]'`, then `pytest -m slow tests/serve/test_ray_app.py`. The
tests start a cluster at the default address of `ray start --head`; no other cluster may run there.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import soundfile
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.support.page_driver import browser, tab
from tests.support.project import ROOT

pytest.importorskip("ray", reason="no Ray")
pytestmark = pytest.mark.slow

EXAMPLE = ROOT / "deploy" / "ray" / "serve-cpu.yaml"
PORT = 8123
URL = f"http://127.0.0.1:{PORT}"
TITLE = b"ray::ServeReplica:vivace:vivace"
LIMIT_S = 180.0
LONG_TEXT = "This is said slowly, word after word, and it goes on for quite a while. " * 6
DRIVER = """
import json, sys, time
import ray
from ray import serve
from vivace.serve.ray_app import app

ray.init(address="auto", log_to_driver=False)
serve.run(app(json.loads(sys.argv[1])), name="vivace", route_prefix="/")
"""


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def is_ready() -> bool:
    try:
        return httpx.get(f"{URL}/health/ready", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def replicas() -> list[int]:
    """Return the process ids of running replicas; starting replicas have longer titles."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            title = (entry / "cmdline").read_bytes() if entry.name.isdecimal() else b""
        except OSError:
            continue
        if title.startswith(TITLE) and b".initialize" not in title:
            found.append(int(entry.name))
    return found


def environment(home: Path) -> dict[str, str]:
    own = {"PYTHONPATH": str(ROOT / "src"), "VIVACE_HOME": str(home)}
    return {**os.environ, **own, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}


@contextmanager
def serve_run(folder: Path, host: str, arguments: dict[str, Any]) -> Iterator[Path]:
    """Run `serve run` with the example file and these arguments; yield its log."""
    import yaml  # of Ray's proxy

    config = yaml.safe_load(EXAMPLE.read_text())
    config["http_options"] = {"host": host, "port": PORT}
    config["applications"][0]["args"] |= arguments
    path = folder / "serve.yaml"
    path.write_text(yaml.safe_dump(config))
    log = folder / "serve.log"
    command = [sys.executable, "-m", "ray.serve.scripts", "run", str(path)]
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env=environment(folder), stdout=output, stderr=output, cwd=folder
        )
    try:
        yield log
    finally:
        process.terminate()
        process.wait(LIMIT_S)
        until(lambda: not replicas(), "replicas are left")


@contextmanager
def cluster(folder: Path, **arguments: Any) -> Iterator[None]:
    with serve_run(folder, "127.0.0.1", arguments):
        until(is_ready, "not ready")
        until(lambda: len(replicas()) == 2, "not two replicas")
        yield


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("ray")
    with cluster(folder):
        yield folder


def body(text: str = "Hello.", **fields: Any) -> dict[str, Any]:
    return {"input": text, "voice": "alloy", "response_format": "pcm", "seed": 7, **fields}


# These two tests come first: they need their own cluster.
def test_public_address_without_a_key_is_not_served(tmp_path: Path) -> None:
    with serve_run(tmp_path, "0.0.0.0", {"replicas": 1}) as log:
        message = "0.0.0.0 can be reached from outside: set a key in VIVACE_API_KEY"
        until(lambda: message in log.read_text(), "no word of it")
        assert not is_ready()


def test_voice_created_on_one_replica_works_on_all(tiny_folder: Path, tmp_path: Path) -> None:
    noise = np.random.default_rng(1).normal(0, 0.1, 36_000).astype(np.float32)
    wav = io.BytesIO()
    soundfile.write(wav, noise, 24_000, format="WAV")
    store = f"file://{tmp_path / 'store'}"
    with cluster(tmp_path, model=f"base={tiny_folder / 'base'}", voices=store):
        files = {"audio_sample": ("me.wav", wav.getvalue(), "audio/wav")}
        made = httpx.post(
            f"{URL}/v1/audio/voices", files=files, data={"name": "me"}, timeout=LIMIT_S
        )
        assert made.status_code == 200, made.text
        asked = body("Hi.", voice="me", max_new_tokens=5)
        answers = [httpx.post(f"{URL}/v1/audio/speech", json=asked, timeout=60) for _ in range(16)]
        assert {answer.status_code for answer in answers} == {200}
        assert httpx.delete(f"{URL}/v1/audio/voices/me", timeout=60).status_code == 200
        answers = [httpx.post(f"{URL}/v1/audio/speech", json=asked, timeout=60) for _ in range(16)]
        assert {answer.status_code for answer in answers} == {400}


def test_openai_client_receives_chunks_while_streaming(served: Path) -> None:
    client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none")
    asked: dict[str, Any] = {"model": "tts-1", "voice": "alloy", "input": LONG_TEXT}
    began, came = time.monotonic(), []
    with client.audio.speech.with_streaming_response.create(
        response_format="pcm", **asked
    ) as response:
        for chunk in response.iter_bytes():
            came.append((time.monotonic() - began, len(chunk)))
    assert len(came) > 5
    assert came[0][0] < came[-1][0] / 2  # before the speech was complete
    mp3 = client.audio.speech.create(model="tts-1", voice="alloy", input="Hello.").content
    assert len(soundfile.read(io.BytesIO(mp3))[0]) > 1_000
    with pytest.raises(openai.BadRequestError, match="no voice named 'nobody'"):
        client.audio.speech.create(model="tts-1", voice="nobody", input="Hello.")


def test_sse_events_stream_and_end_with_usage(served: Path) -> None:
    events, times = [], []
    with httpx.stream(
        "POST", f"{URL}/v1/audio/speech", json=body(LONG_TEXT, stream_format="sse"), timeout=120
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line.startswith("data: "):
                events.append(json.loads(line[6:]))
                times.append(time.monotonic())
    assert [event["type"] for event in events[:-1]] == ["speech.audio.delta"] * (len(events) - 1)
    assert events[-1]["type"] == "speech.audio.done"
    assert len(events) > 5
    assert times[0] - times[-1] < 0
    answer = httpx.post(f"{URL}/v1/audio/speech", json=body(LONG_TEXT), timeout=120)
    assert len(answer.headers.get_list("x-request-id")) == 1
    plain = answer.content
    assert sum(len(base64.b64decode(event.get("audio", ""))) for event in events) == len(plain)


def test_websocket_speaks_twice_on_one_connection(served: Path) -> None:
    with connect(f"ws://127.0.0.1:{PORT}/v1/audio/speech/stream") as socket:
        config = {"type": "session.config", "voice": "alloy", "response_format": "pcm"}
        socket.send(json.dumps(config))
        for words in (["One ", "moment."], ["Thank you."]):
            for piece in words:
                socket.send(json.dumps({"type": "input.text", "text": piece}))
            socket.send(json.dumps({"type": "input.done"}))
            num_bytes = 0
            while True:
                message = socket.recv(timeout=LIMIT_S)
                if isinstance(message, bytes):
                    num_bytes += len(message)
                elif json.loads(message)["type"] == "session.done":
                    break
            assert num_bytes > 10_000


def test_web_page_speaks_in_chromium(served: Path) -> None:
    with browser() as launched, tab(launched) as page:
        page.open(URL)
        page.say("Hello.")
        page.wait(lambda: page.status.startswith("Spoken"))
        assert page.num_loud > 1_000
        page.check()


def test_client_disconnect_ends_the_request_in_the_replica(served: Path) -> None:
    """Metrics do not help: Ray sends the request for them to the idle replica."""
    request_id = f"left-{os.getpid()}"

    def has_ended() -> bool:
        logs = Path("/tmp/ray/session_latest/logs/serve").glob("replica*.log")
        return any(f" {request_id} " in path.read_text(errors="replace") for path in logs)

    asked: dict[str, Any] = {"json": body(LONG_TEXT * 20), "headers": {"x-request-id": request_id}}
    with httpx.stream("POST", f"{URL}/v1/audio/speech", timeout=120, **asked) as response:
        next(response.iter_raw())
        assert not has_ended()
    until(has_ended, "it still runs")  # ten minutes of speech would take longer


def test_killed_replica_loses_only_its_streams_and_is_replaced(served: Path) -> None:
    until(lambda: len(replicas()) == 2, "not two replicas")

    async def ask(client: httpx.AsyncClient, started: asyncio.Semaphore) -> str:
        try:
            async with client.stream("POST", f"{URL}/v1/audio/speech", json=body(LONG_TEXT)) as got:
                num_bytes = 0
                async for chunk in got.aiter_raw():
                    if not num_bytes:
                        started.release()
                    num_bytes += len(chunk)
                return "whole"
        except httpx.RemoteProtocolError:  # truncated body
            return "broken"

    async def check() -> list[str]:
        started = asyncio.Semaphore(0)
        async with httpx.AsyncClient(timeout=LIMIT_S) as client:
            tasks = [asyncio.create_task(ask(client, started)) for _ in range(8)]
            for _ in tasks:
                await started.acquire()
            os.kill(replicas()[0], signal.SIGKILL)
            late = await client.post(f"{URL}/v1/audio/speech", json=body())
            assert late.status_code == 200
            return await asyncio.gather(*tasks)

    came = asyncio.run(check())
    assert set(came) == {"whole", "broken"}  # Ray distributes eight streams over both
    until(lambda: len(replicas()) == 2, "the killed one is not replaced")
    assert httpx.post(f"{URL}/v1/audio/speech", json=body(), timeout=LIMIT_S).status_code == 200


def test_rolling_restart_loses_no_request_and_closes_idle_sockets(served: Path) -> None:
    before = set(replicas())
    statuses: list[int] = []
    is_over = threading.Event()

    def speak() -> None:
        while not is_over.is_set():
            answer = httpx.post(f"{URL}/v1/audio/speech", json=body(), timeout=LIMIT_S)
            statuses.append(answer.status_code)

    threads = [threading.Thread(target=speak) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        with connect(f"ws://127.0.0.1:{PORT}/v1/audio/speech/stream") as idle:
            arguments = {"model": "vivace", "replicas": 2, "max_streams": 16, "drain_timeout": 90}
            subprocess.run(
                [sys.executable, "-c", DRIVER, json.dumps(arguments)],
                env=environment(served),
                check=True,
                timeout=LIMIT_S,
            )
            with pytest.raises(ConnectionClosed) as closed:
                idle.recv(timeout=60)  # less than the drain timeout: the kill does not end it
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1012
        until(lambda: len(replicas()) == 2 and not before & set(replicas()), "not replaced")
    finally:
        is_over.set()
        for thread in threads:
            thread.join(LIMIT_S)
    assert len(statuses) > 8
    assert set(statuses) == {200}
