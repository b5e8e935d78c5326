"""Engines that die: another one comes, the request that kills is refused, five are too many."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.support.project import ROOT
from tests.support.scripted_tts import ScriptedSpeech
from tests.support.serving import Running, running
from vivace import TTS
from vivace.backends.base import Slot
from vivace.cli import serve as cli
from vivace.errors import EngineError, EngineLostError
from vivace.prompt import Prompt
from vivace.serve import deaths as deaths_module
from vivace.serve.deaths import (
    FORGET_S,
    MAX_DEATHS,
    WINDOW_S,
    Deaths,
    Quarantine,
    digest_of,
    dump,
    load,
)
from vivace.serve.errors import RefusedError
from vivace.serve.server import Server
from vivace.serve.settings import ModelSpec, ServeSettings
from vivace.speech import SamplingParams
from vivace.voices.voice import Voice

LIMIT_S = 60.0
DEADLY = 13  # a seed


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


# --- counting ---------------------------------------------------------------------------------


def test_five_deaths_in_ten_minutes_are_too_many() -> None:
    clock = Clock()
    deaths, pauses = Deaths(clock), []
    for number in range(MAX_DEATHS):
        assert not deaths.are_too_many
        clock.now += 100
        deaths.add()
        pauses.append(deaths.pause_s)
        assert deaths.num_recent == number + 1
    assert deaths.are_too_many
    assert pauses == [0.0, 1.0, 2.0, 4.0, 4.0]


def test_deaths_are_forgotten_after_ten_minutes() -> None:
    clock = Clock()
    deaths = Deaths(clock)
    for _ in range(20):
        deaths.add()
        assert not deaths.are_too_many
        clock.now += WINDOW_S / (MAX_DEATHS - 1)
    clock.now += WINDOW_S
    assert (deaths.num_recent, deaths.pause_s) == (0, 0.0)


def test_a_request_is_refused_after_two_deaths_and_not_for_ever() -> None:
    clock = Clock()
    quarantine = Quarantine(clock)
    assert quarantine.strike({"a", "b"}) == []
    quarantine.check("a")
    assert quarantine.strike({"a"}) == ["a"]
    with pytest.raises(RefusedError, match="failed 2 times") as refused:
        quarantine.check("a")
    assert (refused.value.status, refused.value.code) == (400, "quarantined")
    quarantine.check("b")
    quarantine.check(None)
    assert quarantine.num_refused == 1
    clock.now += FORGET_S + 1
    quarantine.check("a")
    assert quarantine.num_refused == 0


def test_a_request_that_was_spoken_is_blamed_no_more() -> None:
    quarantine = Quarantine(Clock())
    quarantine.strike({"a"})
    quarantine.absolve("a")
    assert quarantine.strike({"a"}) == []


def test_so_many_requests_are_remembered_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deaths_module, "MAX_KEPT", 10)
    quarantine = Quarantine(Clock())
    for number in range(50):
        quarantine.strike({str(number)})
    assert list(quarantine.dump()) == [str(number) for number in range(40, 50)]


def test_what_is_known_outlives_the_process() -> None:
    clock = Clock()
    deaths, quarantine = Deaths(clock), Quarantine(clock)
    deaths.add()
    quarantine.strike({"a"})
    quarantine.strike({"a"})
    told = dump(deaths, quarantine)
    later, again = Deaths(clock), Quarantine(clock)
    load(told, later, again)
    assert later.num_recent == 1
    with pytest.raises(RefusedError):
        again.check("a")


def test_of_those_that_were_there_one_runs_at_a_time() -> None:
    """So that the second death blames one of them, and no neighbour."""

    async def run() -> None:
        quarantine, is_in, may_end = Quarantine(Clock()), asyncio.Event(), asyncio.Event()
        quarantine.strike({"a", "b"})

        async def suspect() -> None:
            async with quarantine.running("m", "a"):
                is_in.set()
                await may_end.wait()

        async def other() -> None:
            async with quarantine.running("m", "b"):
                assert may_end.is_set()

        first = asyncio.create_task(suspect())
        await is_in.wait()
        second = asyncio.create_task(other())
        async with quarantine.running("m", "innocent"):  # whom nobody suspects need not wait
            assert quarantine.now_running("m") == {"a", "innocent"}
        assert quarantine.now_running("another model") == set()
        may_end.set()
        await asyncio.gather(first, second)
        assert quarantine.now_running("m") == set()

    asyncio.run(run())


def test_a_suspect_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deaths_module, "ALONE_S", 0.01)

    async def run() -> None:
        quarantine = Quarantine(Clock())
        quarantine.strike({"a", "b"})
        async with quarantine.running("m", "a"), quarantine.running("m", "b"):
            assert quarantine.now_running("m") == {"a", "b"}

    asyncio.run(run())


def test_the_digest_is_of_what_is_said_and_how() -> None:
    voice = Voice(name="me", speaker=np.ones(4, np.float32))
    said: list[tuple[str, object, dict[str, Any]]] = [
        ("m", "Hello.", {"speed": 1.0, "voice": voice}),
        ("m", "Hello!", {"speed": 1.0, "voice": voice}),
        ("n", "Hello.", {"speed": 1.0, "voice": voice}),
        ("m", "Hello.", {"speed": 2.0, "voice": voice}),
        ("m", "Hello.", {"speed": 1.0, "voice": "another"}),
    ]
    assert len({digest_of(*one) for one in said}) == len(said)
    assert digest_of(*said[0]) == digest_of("m", "Hello.", {"voice": voice, "speed": 1.0})
    assert "Hello" not in str(digest_of(*said[0]))
    assert digest_of("m", iter(["Hello."]), {}) is None


# --- a server ---------------------------------------------------------------------------------


class Deadly(ScriptedSpeech):
    """Works until it reads the deadly seed."""

    def admit(self, prompt: Prompt, sampling: SamplingParams) -> Slot:
        if sampling.seed == DEADLY:
            self.broken = RuntimeError("an illegal memory access")
        return super().admit(prompt, sampling)


def speak(url: str, text: str = "Hello.", **fields: object) -> httpx.Response:
    body = {"input": text, "voice": "alloy", "response_format": "pcm", **fields}
    return httpx.post(f"{url}/v1/audio/speech", json=body, timeout=LIMIT_S)


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_for_death(server: Running, number: int) -> None:
    """Until so many were counted, and another engine is there."""
    models = server.context.models
    wait_until(lambda: models.recovery.deaths.num_recent == number and models.is_ready)


@contextmanager
def mortal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Running, list[TTS]]]:
    monkeypatch.setattr(deaths_module, "PAUSES_S", (0.0,))
    loaded: list[TTS] = []

    def load_one(spec: ModelSpec) -> TTS:
        loaded.append(Deadly().load(spec))
        return loaded[-1]

    settings = ServeSettings(port=0, voices=tmp_path, drain_timeout_s=0.5)
    with running(settings, load_one) as server:
        yield server, loaded


def test_a_request_that_kills_twice_is_refused_and_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mortal(tmp_path, monkeypatch) as (server, loaded):
        for number in (1, 2):
            assert speak(server.url, seed=DEADLY).status_code == 500
            wait_for_death(server, number)
        refused = speak(server.url, seed=DEADLY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "quarantined")
        assert len(loaded) == 3
        assert speak(server.url).status_code == 200
        assert speak(server.url, "Another text.", seed=1).status_code == 200
        text = httpx.get(f"{server.url}/metrics").text
        assert 'vivace_engine_deaths_total{model="vivace"} 2' in text
        assert "vivace_quarantined_requests 1" in text


def test_a_request_that_is_spoken_after_a_death_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mortal(tmp_path, monkeypatch) as (server, loaded):
        for number in (1, 2):
            backend = loaded[-1].engine.backend
            assert isinstance(backend, Deadly)
            backend.broken = RuntimeError("the device, not the request")
            assert speak(server.url).status_code == 500
            wait_for_death(server, number)
            assert speak(server.url).status_code == 200


def test_a_dead_engine_is_not_ready_before_anybody_has_probed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mortal(tmp_path, monkeypatch) as (server, loaded):
        assert server.context.models.is_ready
        loaded[0].engine.abandon("it was given up")
        assert httpx.get(f"{server.url}/health/ready").status_code == 503
        assert speak(server.url).status_code == 500  # which finds it out
        wait_for_death(server, 1)
        assert speak(server.url).status_code == 200


def kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_before: int) -> None:
    """Once, after so many deaths; the server ends."""
    with mortal(tmp_path, monkeypatch) as (server, _):
        server.context.models.recovery.deaths.load([time.time() - 60] * num_before)
        assert speak(server.url, seed=DEADLY).status_code == 500
        wait_until(server.loop.is_closed)


def test_five_deaths_end_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineLostError, match="died 5 times in 10 minutes") as lost:
        kill(tmp_path, monkeypatch, MAX_DEATHS - 1)
    assert not lost.value.needs_process


def test_a_lost_device_needs_a_new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivace.engine.worker.is_context_lost", lambda: True)
    with pytest.raises(EngineLostError, match="a new process is needed") as lost:
        kill(tmp_path, monkeypatch, 0)
    assert lost.value.needs_process


def test_a_backend_that_is_rebuilt_within_its_engine_is_a_death_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mortal(tmp_path, monkeypatch) as (server, loaded):
        engine = loaded[0].engine
        engine._worker.num_rebuilds += 1
        model = server.context.models.loaded()[0]
        server.loop.call_soon_threadsafe(server.context.models.recovery.suspect, model, "digest")
        wait_until(lambda: server.context.models.recovery.deaths.num_recent == 1)
        assert list(server.context.models.recovery.quarantine.dump()) == ["digest"]
        assert server.context.models.loaded() == [model]


# --- the process ------------------------------------------------------------------------------


class Replaced(Exception):
    """In place of a new process."""


def serve_and_lose(monkeypatch: pytest.MonkeyPatch, loss: EngineError) -> int:
    async def lose(server: Server, on_ready: object) -> None:
        server.context.models.recovery.deaths.add()
        raise loss

    monkeypatch.setattr(Server, "serve", lose)
    monkeypatch.setattr(deaths_module, "PAUSES_S", (0.0,))
    return cli._serve(ServeSettings(port=0))


def test_too_many_deaths_have_an_exit_code_of_their_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve_and_lose(monkeypatch, EngineLostError("it died 5 times")) == 70
    assert "it died 5 times" in capsys.readouterr().err


def test_a_lost_device_replaces_the_process_which_knows_of_the_death(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replaced: list[tuple[str, list[str], dict[str, str]]] = []

    def execve(path: str, command: list[str], environment: dict[str, str]) -> None:
        replaced.append((path, command, environment))
        raise Replaced

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "vivace", "serve"])
    for number in (1, 2):
        with pytest.raises(Replaced):
            serve_and_lose(monkeypatch, EngineLostError("gone", needs_process=True))
        path, command, environment = replaced[-1]
        assert (path, command) == (sys.executable, [sys.executable, "-m", "vivace", "serve"])
        assert len(json.loads(environment[cli.LAST_LIFE])["deaths"]) == number
        monkeypatch.setenv(cli.LAST_LIFE, environment[cli.LAST_LIFE])


SCRIPT = """
import os, sys
sys.path.insert(0, {tests!r})
from tests.serve import test_deaths
from vivace.cli import main, serve
from vivace.serve.models import Models
if serve.LAST_LIFE not in os.environ:
    import vivace.engine.engine
    vivace.engine.worker.is_context_lost = lambda: True
Models._load_tts = lambda self, spec: test_deaths.Deadly().load(spec)
sys.exit(main.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_process_that_lost_its_device_starts_again_by_itself(tmp_path: Path) -> None:
    script = tmp_path / "deadly.py"
    script.write_text(SCRIPT.format(tests=str(ROOT)))
    command = [sys.executable, str(script), "serve", "--port", "0", "--voices", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        urls = (line.split()[1] for line in process.stderr if line.startswith("ready: "))
        try:
            assert speak(next(urls).rstrip("/"), seed=DEADLY).status_code == 500
            url = next(urls).rstrip("/")  # the same process, a new life
            assert speak(url).status_code == 200
            assert speak(url, seed=DEADLY).status_code == 500
            wait_until(lambda: speak(url, seed=DEADLY).status_code == 400)
        finally:
            process.send_signal(signal.SIGTERM)
            process.stderr.read()
    assert process.returncode == 0
