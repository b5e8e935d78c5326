"""Engine crashes: reloading the model, the quarantine of requests, and the end of the server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.support.project import ROOT
from tests.support.scripted_tts import ScriptedSpeech
from tests.support.serving import Running, running
from tests.support.websocket_client import wait_until
from vivace import TTS
from vivace.backends.base import Slot
from vivace.cli import serve as cli
from vivace.errors import EngineError, EngineLostError
from vivace.prompt import Prompt
from vivace.serve.errors import RefusedError
from vivace.serve.models import crashes as crashes_module
from vivace.serve.models.crashes import (
    MAX_CRASHES,
    STRIKE_LIFETIME_S,
    SUSPECT_WAIT_TIMEOUT_S,
    WINDOW_S,
    CrashLog,
    Quarantine,
    digest_of,
    dump_state,
    load_state,
)
from vivace.serve.server import Server
from vivace.serve.settings import ModelSpec, ServeSettings
from vivace.speech import SamplingParams
from vivace.voices.voice import Voice

LIMIT_S = 60.0
CRASHING = 13  # a seed


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


# --- crash log and quarantine -------------------------------------------------------------------


def test_crash_log_reaches_its_limit_at_five_crashes_in_ten_minutes() -> None:
    clock = Clock()
    crashes, pauses = CrashLog(clock), []
    for number in range(MAX_CRASHES):
        assert not crashes.is_limit_reached
        clock.now += 100
        crashes.add()
        pauses.append(crashes.pause_s)
        assert crashes.num_recent == number + 1
    assert crashes.is_limit_reached
    assert pauses == [0.0, 1.0, 2.0, 4.0, 4.0]


def test_crash_log_drops_crashes_after_ten_minutes() -> None:
    clock = Clock()
    crashes = CrashLog(clock)
    for _ in range(20):
        crashes.add()
        assert not crashes.is_limit_reached
        clock.now += WINDOW_S / (MAX_CRASHES - 1)
    clock.now += WINDOW_S
    assert (crashes.num_recent, crashes.pause_s) == (0, 0.0)


def test_request_with_two_strikes_is_rejected_until_they_expire() -> None:
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
    assert quarantine.num_rejected == 1
    clock.now += STRIKE_LIFETIME_S + 1
    quarantine.check("a")
    assert quarantine.num_rejected == 0


def test_completed_request_loses_its_strikes() -> None:
    quarantine = Quarantine(Clock())
    quarantine.strike({"a"})
    quarantine.clear("a")
    assert quarantine.strike({"a"}) == []


def test_quarantine_tracks_the_newest_requests_up_to_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crashes_module, "MAX_TRACKED", 10)
    quarantine = Quarantine(Clock())
    for number in range(50):
        quarantine.strike({str(number)})
    assert list(quarantine.strikes) == [str(number) for number in range(40, 50)]


def test_state_is_restored_in_the_next_process() -> None:
    clock = Clock()
    crashes, quarantine = CrashLog(clock), Quarantine(clock)
    crashes.add()
    quarantine.strike({"a"})
    quarantine.strike({"a"})
    state = dump_state(crashes, quarantine)
    later, again = CrashLog(clock), Quarantine(clock)
    load_state(state, later, again)
    assert later.num_recent == 1
    with pytest.raises(RefusedError):
        again.check("a")


def test_requests_with_a_strike_run_one_at_a_time() -> None:
    """Only one of them is in flight at a second crash."""

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
        async with quarantine.running("m", "other"):  # a request without strikes does not wait
            assert quarantine.in_flight("m") == {"a", "other"}
        assert quarantine.in_flight("another model") == set()
        may_end.set()
        await asyncio.gather(first, second)
        assert quarantine.in_flight("m") == set()

    asyncio.run(run())


def test_request_with_a_strike_waits_until_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crashes_module, "SUSPECT_WAIT_TIMEOUT_S", 0.01)

    async def run() -> None:
        quarantine = Quarantine(Clock())
        quarantine.strike({"a", "b"})
        async with quarantine.running("m", "a"), quarantine.running("m", "b"):
            assert quarantine.in_flight("m") == {"a", "b"}

    asyncio.run(run())


def test_digest_depends_on_model_text_and_options() -> None:
    voice = Voice(name="me", speaker=np.ones(4, np.float32))
    requests: list[tuple[str, object, dict[str, Any]]] = [
        ("m", "Hello.", {"speed": 1.0, "voice": voice}),
        ("m", "Hello!", {"speed": 1.0, "voice": voice}),
        ("n", "Hello.", {"speed": 1.0, "voice": voice}),
        ("m", "Hello.", {"speed": 2.0, "voice": voice}),
        ("m", "Hello.", {"speed": 1.0, "voice": "another"}),
    ]
    assert len({digest_of(*one) for one in requests}) == len(requests)
    assert digest_of(*requests[0]) == digest_of("m", "Hello.", {"voice": voice, "speed": 1.0})
    assert "Hello" not in str(digest_of(*requests[0]))
    assert digest_of("m", iter(["Hello."]), {}) is None


# --- a server ---------------------------------------------------------------------------------


class CrashingSpeech(ScriptedSpeech):
    """A backend that breaks when a request has the seed `CRASHING`."""

    def admit(self, prompt: Prompt, sampling: SamplingParams) -> Slot:
        if sampling.seed == CRASHING:
            self.broken = RuntimeError("an illegal memory access")
        return super().admit(prompt, sampling)


def speak(url: str, text: str = "Hello.", **fields: object) -> httpx.Response:
    body = {"input": text, "voice": "alloy", "response_format": "pcm", **fields}
    return httpx.post(f"{url}/v1/audio/speech", json=body, timeout=LIMIT_S)


def wait_for_crash(server: Running, number: int) -> None:
    """Wait until `number` crashes are counted and the model is loaded again."""
    models = server.context.models
    wait_until(lambda: models.recovery.crashes.num_recent == number and models.is_ready)


@contextmanager
def crashing_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Running, list[TTS]]]:
    monkeypatch.setattr(crashes_module, "PAUSES_S", (0.0,))
    loaded: list[TTS] = []

    def load_one(spec: ModelSpec) -> TTS:
        loaded.append(CrashingSpeech().load(spec))
        return loaded[-1]

    settings = ServeSettings(port=0, voices=tmp_path, drain_timeout_s=0.5)
    with running(settings, load_one) as server:
        yield server, loaded


def test_request_that_crashes_the_engine_twice_is_rejected_and_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with crashing_server(tmp_path, monkeypatch) as (server, loaded):
        for number in (1, 2):
            assert speak(server.url, seed=CRASHING).status_code == 500
            wait_for_crash(server, number)
        refused = speak(server.url, seed=CRASHING)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "quarantined")
        assert len(loaded) == 3
        assert speak(server.url).status_code == 200
        assert speak(server.url, "Another text.", seed=1).status_code == 200
        text = httpx.get(f"{server.url}/metrics").text
        assert 'vivace_engine_deaths_total{model="vivace"} 2' in text
        assert "vivace_quarantined_requests 1" in text


def test_request_that_completes_after_a_crash_is_not_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with crashing_server(tmp_path, monkeypatch) as (server, loaded):
        for number in (1, 2):
            backend = loaded[-1].engine.backend
            assert isinstance(backend, CrashingSpeech)
            backend.broken = RuntimeError("the device, not the request")
            assert speak(server.url).status_code == 500
            wait_for_crash(server, number)
            assert speak(server.url).status_code == 200


def test_abandoned_engine_is_not_ready_before_a_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with crashing_server(tmp_path, monkeypatch) as (server, loaded):
        assert server.context.models.is_ready
        loaded[0].engine.abandon("abandoned by the test")
        assert httpx.get(f"{server.url}/health/ready").status_code == 503
        assert speak(server.url).status_code == 500  # starts the probe
        wait_for_crash(server, 1)
        assert speak(server.url).status_code == 200


def crash_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_before: int) -> None:
    """Crash the engine after `num_before` earlier crashes, and wait until the server ends."""
    with crashing_server(tmp_path, monkeypatch) as (server, _):
        server.context.models.recovery.crashes.times.extend([time.time() - 60] * num_before)
        assert speak(server.url, seed=CRASHING).status_code == 500
        wait_until(server.loop.is_closed)


def test_fifth_crash_ends_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineLostError, match="crashed 5 times in 10 minutes") as lost:
        crash_once(tmp_path, monkeypatch, MAX_CRASHES - 1)
    assert not lost.value.needs_process


def test_lost_device_needs_a_new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivace.engine.turns.worker.is_context_lost", lambda: True)
    with pytest.raises(EngineLostError, match="a new process is needed") as lost:
        crash_once(tmp_path, monkeypatch, 0)
    assert lost.value.needs_process


def test_backend_rebuild_counts_as_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with crashing_server(tmp_path, monkeypatch) as (server, loaded):
        engine = loaded[0].engine
        engine._worker.num_rebuilds += 1
        model = server.context.models.loaded()[0]
        server.loop.call_soon_threadsafe(server.context.models.recovery.suspect, model, "digest")
        wait_until(lambda: server.context.models.recovery.crashes.num_recent == 1)
        assert list(server.context.models.recovery.quarantine.strikes) == ["digest"]
        assert server.context.models.loaded() == [model]


# --- the process ------------------------------------------------------------------------------


class Replaced(Exception):
    """Raised instead of starting a new process."""


def serve_and_lose(monkeypatch: pytest.MonkeyPatch, loss: EngineError) -> int:
    async def lose(server: Server, on_ready: object) -> None:
        server.context.models.recovery.crashes.add()
        raise loss

    monkeypatch.setattr(Server, "serve", lose)
    monkeypatch.setattr(crashes_module, "PAUSES_S", (0.0,))
    return cli._serve(ServeSettings(port=0))


def test_too_many_crashes_exit_with_code_70(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve_and_lose(monkeypatch, EngineLostError("it crashed 5 times")) == 70
    assert "it crashed 5 times" in capsys.readouterr().err


def test_lost_device_restarts_the_process_with_its_crash_state(
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
        assert len(json.loads(environment[cli.CRASH_STATE])["crashes"]) == number
        monkeypatch.setenv(cli.CRASH_STATE, environment[cli.CRASH_STATE])


SCRIPT = """
import os, sys
sys.path.insert(0, {tests!r})
from tests.serve.models import test_crashes
from vivace.cli import main, serve
from vivace.serve.models.registry import ModelRegistry
if serve.CRASH_STATE not in os.environ:
    import vivace.engine.engine
    vivace.engine.turns.worker.is_context_lost = lambda: True
ModelRegistry._load_tts = lambda self, spec: test_crashes.CrashingSpeech().load(spec)
sys.exit(main.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_process_that_lost_its_device_restarts_itself(tmp_path: Path) -> None:
    script = tmp_path / "crashing.py"
    script.write_text(SCRIPT.format(tests=str(ROOT)))
    command = [sys.executable, str(script), "serve", "--port", "0", "--voices", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        urls = (line.split()[1] for line in process.stderr if line.startswith("ready: "))
        try:
            assert speak(next(urls).rstrip("/"), seed=CRASHING).status_code == 500
            url = next(urls).rstrip("/")  # the new process
            assert speak(url).status_code == 200
            assert speak(url, seed=CRASHING).status_code == 500
            wait_until(lambda: speak(url, seed=CRASHING).status_code == 400)
        finally:
            process.send_signal(signal.SIGTERM)
            process.stderr.read()
    assert process.returncode == 0


def test_suspected_request_that_ended_lets_the_next_one_run_at_once() -> None:
    async def run_twice() -> None:
        quarantine = Quarantine()
        quarantine.strike(["a", "b"])
        for digest in ("a", "b"):
            with suppress(ValueError):
                async with quarantine.running("m", digest):
                    raise ValueError
        assert not quarantine.in_flight("m")

    asyncio.run(asyncio.wait_for(run_twice(), SUSPECT_WAIT_TIMEOUT_S / 2))
