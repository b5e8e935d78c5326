"""G10: a signal under load: every stream completes or fails visibly, and the process exits.

The controls are a server that exits at once, and streams with an early end that looks complete.
`tests/serve/test_server.py` tests one signal with the embedded voice, and the second signal.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from tests.support.disconnecting_clients import TALKS
from tests.support.figures import record
from tests.support.network import free_port, is_free
from tests.support.project import ROOT
from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from tests.support.websocket_client import wait_until
from vivace.serve.settings import ServeSettings

SCRIPT = "tests.support.scripted_server"
NUM_FRAMES, ENDLESS = 60, 7  # of tests/support/scripted_server.py
NUM_BYTES = NUM_FRAMES * 1_920 * 2
LIMIT_S = 120.0
PATH = "/v1/audio/speech"
BODY = {"input": "Hello there.", "response_format": "pcm"}
WHOLE, MARKED, REFUSED, TRUNCATED = "whole", "marked incomplete", "refused", "TRUNCATED"


# -- clients that report how a speech ended -------------------------------------------------------


def judge(num_bytes: int) -> str:
    """Return the samples of a speech that the client accepted as complete."""
    return WHOLE if num_bytes == NUM_BYTES else TRUNCATED


def receive_http(url: str, begun: threading.Event, **fields: Any) -> str:
    received = 0
    try:
        with httpx.stream("POST", url + PATH, json={**BODY, **fields}, timeout=LIMIT_S) as answer:
            if answer.status_code != 200:
                answer.read()
                return REFUSED if answer.json()["error"]["code"] in ("draining",) else answer.text
            for part in answer.iter_raw():
                received += len(part)
                begun.set()
    except httpx.TransportError:
        return MARKED
    return judge(received)


def receive_whole(url: str, begun: threading.Event) -> str:
    begun.set()
    return receive_http(url, begun, stream=False)


def receive_events(url: str, begun: threading.Event) -> str:
    lines: list[str] = []
    try:
        body = {**BODY, "stream_format": "sse"}
        with httpx.stream("POST", url + PATH, json=body, timeout=LIMIT_S) as answer:
            if answer.status_code != 200:
                return REFUSED if answer.status_code == 503 else str(answer.status_code)
            for line in answer.iter_lines():
                lines.append(line)
                begun.set()
    except httpx.TransportError:
        return MARKED
    return WHOLE if any("speech.audio.done" in line for line in lines) else TRUNCATED


def receive_socket(url: str, begun: threading.Event) -> str:
    talk, num_bytes = TALKS["omni"], 0
    try:
        with connect(f"ws{url[4:]}{talk.path}", proxy=None, max_size=None) as opened:
            for words in (talk.config, talk.text, *talk.done):
                opened.send(json.dumps(words))
            while True:
                message = opened.recv(LIMIT_S)
                begun.set()
                if isinstance(message, bytes):
                    num_bytes += len(message)
                elif json.loads(message)["type"] == "error":
                    return MARKED
                elif json.loads(message)["type"] == "session.done":
                    return judge(num_bytes)
    except (OSError, WebSocketException):
        return MARKED


def receive_endless(url: str, begun: threading.Event) -> str:
    return receive_http(url, begun, seed=ENDLESS, max_new_tokens=1_000_000)


Client = Callable[[str, threading.Event], str]
CLIENTS: tuple[Client, ...] = (
    *(receive_http, receive_http, receive_whole, receive_events, receive_socket, receive_socket),
    *(receive_http, receive_whole, receive_endless),
)
ENDING = CLIENTS[:-1]


@dataclass
class Load:
    """Run clients of every kind at once."""

    url: str
    clients: tuple[Client, ...] = CLIENTS
    outcomes: list[str] = field(default_factory=list)
    begun: list[threading.Event] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        for client in self.clients:
            begun = threading.Event()
            self.begun.append(begun)
            work = threading.Thread(target=self._work, args=(client, begun), daemon=True)
            self.threads.append(work)
            work.start()

    def _work(self, client: Client, begun: threading.Event) -> None:
        try:
            self.outcomes.append(client(self.url, begun))
        except BaseException as error:
            self.outcomes.append(repr(error))

    def wait_begun(self) -> None:
        for begun in self.begun:
            assert begun.wait(LIMIT_S)

    def end(self) -> Counter[str]:
        for thread in self.threads:
            thread.join(LIMIT_S)
        assert len(self.outcomes) == len(self.clients)
        return Counter(self.outcomes)


# -- servers in processes ------------------------------------------------------------------------


class Servers:
    """Forks server processes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._wait_for_line() == "ready"

    def _read(self) -> None:
        assert self._process.stderr is not None
        self._lines += iter(self._process.stderr)

    def _wait_for_line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def start(self) -> tuple[int, str]:
        """Start a server; return its process and URL."""
        assert self._process.stdin is not None
        del self._lines[:]
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        pid = int(self._wait_for_line().removeprefix("pid "))
        wait_until(lambda: any(line.startswith("ready: ") for line in self._lines), LIMIT_S)
        ready = next(line for line in self._lines if line.startswith("ready: "))
        return pid, ready.removeprefix("ready: ").strip().rstrip("/")

    def wait(self) -> int:
        return int(self._wait_for_line().removeprefix("exit "))


@contextmanager
def forked(*flags: str) -> Iterator[Servers]:
    process = subprocess.Popen(
        [sys.executable, "-m", SCRIPT, *flags],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    with process:
        try:
            yield Servers(process)
        finally:
            process.kill()


@dataclass(frozen=True)
class End:
    outcomes: Counter[str]
    code: int
    seconds: float
    is_group_gone: bool
    is_port_free: bool

    @property
    def is_clean(self) -> bool:
        """Check that no truncated speech looks complete and that the process group is gone."""
        is_visible = set(self.outcomes) <= {WHOLE, MARKED, REFUSED}
        return is_visible and self.code == 0 and self.is_group_gone and self.is_port_free


def terminate_under_load(
    servers: Servers, delay_s: float | None = None, clients: tuple[Client, ...] = CLIENTS
) -> End:
    """Send SIGTERM after every stream has begun, or after a delay."""
    pid, url = servers.start()
    load = Load(url, clients)
    load.start()
    if delay_s is None:
        load.wait_begun()
    else:
        time.sleep(delay_s)
    began = time.monotonic()
    os.kill(pid, signal.SIGTERM)
    code = servers.wait()
    seconds = time.monotonic() - began
    return End(load.end(), code, seconds, is_gone(pid), is_free(int(url.rpartition(":")[2])))


def is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.slow
def test_server_stops_cleanly_at_100_random_moments() -> None:
    chance, outcomes, seconds = random.Random(5), Counter[str](), []
    with forked("--drain-timeout=2") as servers:
        for _ in range(100):
            end = terminate_under_load(servers, chance.uniform(0, 1.5))
            assert end.is_clean, end
            outcomes += end.outcomes
            seconds.append(end.seconds)
    record(
        "G10 signals",
        signals=len(seconds),
        requests=outcomes.total(),
        whole=outcomes[WHOLE],
        marked_incomplete=outcomes[MARKED],
        refused=outcomes[REFUSED],
        truncated_as_success=outcomes[TRUNCATED],
        drain_timeout_s=2,
        exit_max_s=round(max(seconds), 2),
    )
    assert max(seconds) <= 2 + 2


@pytest.mark.slow  # starting processes takes seconds
@pytest.mark.parametrize(("flag", "is_clean"), [("--drain-timeout=60", True), ("--abort", False)])
def test_running_stream_is_complete_unless_the_server_exits_at_once(
    flag: str, is_clean: bool
) -> None:
    with forked(flag) as servers:
        end = terminate_under_load(servers, clients=ENDING)
    assert end.is_clean
    assert (end.outcomes == {WHOLE: len(ENDING)}) is is_clean, end


def test_control_early_end_that_looks_complete_is_detected() -> None:
    assert judge(NUM_BYTES) == WHOLE
    assert judge(NUM_BYTES - 3_840) == TRUNCATED
    end = End(Counter({WHOLE: 5, TRUNCATED: 1}), 0, 1.0, True, True)
    assert not end.is_clean


# -- in this process -----------------------------------------------------------------------------


def test_drain_under_load_finishes_streams_and_cuts_the_endless_one(tmp_path: Path) -> None:
    """The drain waits for finite speech; the second signal cuts off endless speech."""
    backend = ScriptedSpeech(
        default=Plan(NUM_FRAMES), plans={ENDLESS: Plan(1_000_000)}, step_s=0.02, max_streams=16
    )
    settings = ServeSettings(port=0, voices=tmp_path, drain_timeout_s=LIMIT_S)
    with running(settings, backend.load) as server:
        load = Load(server.url)
        load.start()
        wait_until(lambda: backend.num_admitted >= 1 + len(CLIENTS))  # one is the probe
        server.loop.call_soon_threadsafe(server.server.stop)
        for thread in load.threads[:-1]:
            thread.join(LIMIT_S)
        wait_until(lambda: server.context.streams.num_active == 1)
        server.loop.call_soon_threadsafe(server.server.stop)
        outcomes = load.end()
    assert outcomes == {WHOLE: len(CLIENTS) - 1, MARKED: 1}


def test_request_without_a_response_at_the_end_of_a_drain_gets_503(tmp_path: Path) -> None:
    backend = ScriptedSpeech(default=Plan(1_000_000), step_s=0.05)
    settings = ServeSettings(port=0, voices=tmp_path, drain_timeout_s=0.3)
    answers: list[httpx.Response] = []

    def ask(server: Running) -> None:
        body = {**BODY, "stream": False, "seed": 1, "max_new_tokens": 1_000_000}
        answers.append(httpx.post(server.url + PATH, json=body, timeout=LIMIT_S))

    with running(settings, backend.load) as server:
        thread = threading.Thread(target=ask, args=(server,))
        thread.start()
        wait_until(lambda: bool(backend.active_slots))
        server.loop.call_soon_threadsafe(server.server.stop)
        thread.join(LIMIT_S)
    assert answers[0].status_code == 503
    assert answers[0].json()["error"]["code"] == "draining"
    assert answers[0].headers["retry-after"]


# -- two replicas --------------------------------------------------------------------------------


class Replica:
    """A server that can be restarted on its port."""

    def __init__(self, folder: Path, port: int, drain_timeout_s: float, step_s: float) -> None:
        self.settings = ServeSettings(port=port, voices=folder, drain_timeout_s=drain_timeout_s)
        self.backend = ScriptedSpeech(default=Plan(NUM_FRAMES), step_s=step_s)
        self.stack = contextlib.ExitStack()
        self.url = f"http://127.0.0.1:{port}"

    def start(self) -> None:
        self.stack.enter_context(running(self.settings, self.backend.load))

    def stop(self) -> None:
        self.stack.close()


def ask_with_failover(urls: list[str], begun: threading.Event) -> str:
    """Send a request like a load balancer: try the other replica if no byte arrived."""
    outcome = REFUSED
    for url in urls * 4:  # the other replica may be running again
        tried = threading.Event()

        class Both(threading.Event):
            def set(self, tried: threading.Event = tried) -> None:
                tried.set()
                begun.set()

        outcome = receive_http(url, Both())
        if outcome == WHOLE or tried.is_set():
            return outcome
    return outcome


def restart_both(tmp_path: Path, drain_timeout_s: float, step_s: float) -> Counter[str]:
    """Return the results of continuous requests while the replicas restart in turn."""
    replicas = [Replica(tmp_path, free_port(), drain_timeout_s, step_s) for _ in range(2)]
    outcomes: Counter[str] = Counter()
    is_over = threading.Event()
    urls = [replica.url for replica in replicas]

    def keep_asking(number: int) -> None:
        while not is_over.is_set():
            outcomes[ask_with_failover(urls[number:] + urls[:number], threading.Event())] += 1

    threads = [threading.Thread(target=keep_asking, args=(n % 2,)) for n in range(4)]
    try:
        for replica in replicas:
            replica.start()
        for thread in threads:
            thread.start()
        for replica in replicas:
            wait_until(lambda replica=replica: replica.backend.num_made >= 5, LIMIT_S)  # type: ignore[misc]
            replica.stop()
            replica.start()
    finally:
        is_over.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join(LIMIT_S)
        for replica in replicas:
            replica.stop()
    return outcomes


@pytest.mark.ci
def test_rolling_restart_of_two_replicas_fails_no_request(tmp_path: Path) -> None:
    outcomes = restart_both(tmp_path, drain_timeout_s=60.0, step_s=0.1)
    record("G10 rolling restart", replicas=2, requests=outcomes.total(), whole=outcomes[WHOLE])
    assert set(outcomes) == {WHOLE}, outcomes
    assert outcomes[WHOLE] >= 4


@pytest.mark.slow
def test_control_replicas_without_a_drain_are_detected(tmp_path: Path) -> None:
    outcomes = restart_both(tmp_path, drain_timeout_s=0.0, step_s=0.5)
    assert set(outcomes) - {WHOLE}, outcomes
