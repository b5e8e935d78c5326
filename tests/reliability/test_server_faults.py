"""G8: faults of the backend, the disk or a process fail the affected streams visibly, no others.

Each fault occurs once: in a single stream, and beside five others. A fault of one row fails that
row; a fault of a call fails all streams in it. Afterwards the server is ready, speaks and holds no
resources. The controls end a failed speech cleanly, or never recover.

Tested elsewhere: hung backends (`test_hung_backend.py`), crashes and lost devices
(`tests/serve/models/test_crashes.py`), single calls of the backend
(`tests/engine/test_engine_faults.py`),
decoder processes that are killed, hang or return wrong data (`tests/audio/test_sandbox.py`),
SIGTERM (`test_drain_load.py`).
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import httpx
import numpy as np
import pytest
import soundfile
import torch

from tests.reliability.test_drain_load import (
    BODY,
    MARKED,
    NUM_FRAMES,
    PATH,
    TRUNCATED,
    WHOLE,
    Load,
    forked,
    is_gone,
    judge,
    receive_http,
)
from tests.support.figures import record
from tests.support.network import is_free
from tests.support.resource_counts import ResourceCounts, find_leaks
from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from tests.support.websocket_client import wait_until
from vivace.backends.base import Frames, Samples, Slot, SlotStatus
from vivace.prompt import Prompt
from vivace.serve.settings import ModelSpec, ServeSettings
from vivace.speech import SamplingParams

LIMIT_S = 60.0
AFFECTED = 66  # a seed
NUM_PEERS = 5
RAISED = (
    RuntimeError("CUDA error: device-side assert triggered"),
    torch.OutOfMemoryError("CUDA out of memory"),
    MemoryError("no memory"),
    AssertionError("a slot that is not there"),
    SystemExit(3),
)
BAD_NUMBERS = (float("nan"), float("inf"), float("-inf"))


@dataclass(frozen=True)
class Fault:
    """A fault of the affected stream in one call of the backend, after a number of frames."""

    stage: str  # admit, step, render
    what: (
        BaseException | float | str
    )  # an exception, a sample value, or "failed" for logits that are not finite
    after: int = 0

    @property
    def is_of_a_row(self) -> bool:
        is_raised = isinstance(self.what, BaseException)
        return not is_raised or (self.stage == "admit" and isinstance(self.what, Exception))

    def __str__(self) -> str:
        what = type(self.what).__name__ if isinstance(self.what, BaseException) else self.what
        return f"{self.stage} {what} after {self.after}"


FAULTS = (
    *(Fault("admit", error) for error in RAISED),
    *(Fault("step", error, after) for error in RAISED for after in (0, 20)),
    *(Fault("render", error, after) for error in RAISED for after in (0, 20)),
    *(Fault("step", "failed", after) for after in (0, 20, 30)),
    *(Fault("render", number, after) for number in BAD_NUMBERS for after in (0, 20)),
)


NUMBERS = tuple(each for each in FAULTS if not isinstance(each.what, BaseException))
EXITS = tuple(each for each in FAULTS if isinstance(each.what, SystemExit))
QUICK = (*FAULTS[:2], *EXITS[:2], *FAULTS[5:7], *EXITS[3:4], *NUMBERS[1:2], *NUMBERS[4:5])


@dataclass
class FaultySpeech(ScriptedSpeech):
    fault: Fault | None = None
    affected: Slot | None = None

    def _strikes(self, stage: str, slots: Sequence[Slot]) -> Fault | None:
        """Return the fault once, when it is due."""
        fault, slot = self.fault, self.affected
        if fault is None or fault.stage != stage or slot is None or slot not in slots:
            return None
        if stage != "admit" and self.active_slots[slot].num_made < fault.after:
            return None
        assert self.is_open.wait(LIMIT_S)  # all streams have begun
        self.fault = None
        if isinstance(fault.what, BaseException):
            raise fault.what
        return fault

    def admit(self, prompt: Prompt, sampling: SamplingParams) -> Slot:
        if sampling.seed == AFFECTED:
            self.affected = -1
            self._strikes("admit", (-1,))
        slot = super().admit(prompt, sampling)
        if sampling.seed == AFFECTED:
            self.affected = slot
        return slot

    def step(self, slots: Sequence[Slot], num_frames: int) -> Frames:
        struck = self._strikes("step", slots)
        frames = super().step(slots, num_frames)
        if struck is None:
            return frames
        status: list[SlotStatus] = [
            "failed" if slot == self.affected else one
            for slot, one in zip(slots, frames.status, strict=True)
        ]
        return Frames(frames.codes, frames.lengths, tuple(status))

    def render(self, slots: Sequence[Slot], frames: Frames) -> list[Samples]:
        struck = self._strikes("render", slots)
        samples = super().render(slots, frames)
        if struck is not None:
            row = list(slots).index(self.affected or 0)
            samples[row] = np.full_like(samples[row], struck.what)
        return samples


def receive(url: str, begun: threading.Event, **fields: object) -> str:
    """Like `receive_http`, at a tenth of its cost."""
    connection = HTTPConnection("127.0.0.1", int(url.rpartition(":")[2]), timeout=LIMIT_S)
    try:
        body = json.dumps({**BODY, **fields})
        connection.request("POST", PATH, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        audio = answer.read()
    except (HTTPException, ConnectionError):
        return MARKED
    finally:
        connection.close()
    return judge(len(audio)) if answer.status == 200 else audio.decode()


@dataclass(frozen=True)
class FaultyServer:
    server: Running
    backend: FaultySpeech

    @property
    def is_ready(self) -> bool:
        url = f"{self.server.url}/health/ready"
        with contextlib.suppress(HTTPError), urlopen(url, timeout=LIMIT_S) as answer:
            return bool(answer.status == 200)
        return False

    def strike(self, fault: Fault, num_peers: int) -> tuple[str, list[str]]:
        """Return the results of the affected stream and of the others."""
        backend, streams = self.backend, self.server.context.streams
        backend.fault, backend.affected = fault, None
        backend.is_open.clear()  # until all streams have begun
        peers = Load(self.server.url, (receive,) * num_peers)
        results: list[str] = []

        def receive_affected() -> None:
            results.append(receive(self.server.url, threading.Event(), seed=AFFECTED))

        thread = threading.Thread(target=receive_affected)
        try:
            peers.start()
            thread.start()
            wait_until(lambda: streams.num_active == num_peers + 1, LIMIT_S)
        finally:
            backend.is_open.set()
        thread.join(LIMIT_S)
        return results[0], list(peers.end().elements())


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyServer]:
    backend = FaultySpeech(default=Plan(NUM_FRAMES))
    folder = tmp_path_factory.mktemp("voices")
    settings = ServeSettings(port=0, voices=folder, drain_timeout_s=0.5)
    with running(settings, backend.load) as server:
        yield FaultyServer(server, backend)


def check_afterwards(faulty: FaultyServer, before: ResourceCounts) -> None:
    wait_until(lambda: faulty.is_ready, LIMIT_S)
    assert receive(faulty.server.url, threading.Event()) == WHOLE
    assert find_leaks(faulty.server, faulty.backend, before) == {}


@pytest.mark.parametrize("num_peers", [0, NUM_PEERS], ids=["idle", "loaded"])
@pytest.mark.parametrize(
    "fault",
    [pytest.param(each, marks=() if each in QUICK else pytest.mark.slow) for each in FAULTS],
    ids=str,
)
def test_fault_fails_only_the_affected_streams_visibly(
    faulty: FaultyServer, fault: Fault, num_peers: int
) -> None:
    assert receive(faulty.server.url, threading.Event()) == WHOLE
    before = ResourceCounts.of(faulty.server, faulty.backend)
    affected, peers = faulty.strike(fault, num_peers)
    assert faulty.backend.fault is None, "it did not strike"
    assert affected not in (WHOLE, TRUNCATED)
    assert len(peers) == num_peers
    assert TRUNCATED not in peers
    if fault.is_of_a_row:
        assert set(peers) <= {WHOLE}, peers
    check_afterwards(faulty, before)


# -- the controls --------------------------------------------------------------------------------


def test_control_failed_stream_with_a_clean_end_is_detected(
    faulty: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backend that ends with `stop` instead of reporting failed logits."""
    step = FaultySpeech.step

    def stop_silently(backend: FaultySpeech, slots: Sequence[Slot], num_frames: int) -> Frames:
        frames = step(backend, slots, num_frames)
        status: list[SlotStatus] = ["stop" if each == "failed" else each for each in frames.status]
        return Frames(frames.codes, frames.lengths, tuple(status))

    monkeypatch.setattr(FaultySpeech, "step", stop_silently)
    affected, _ = faulty.strike(Fault("step", "failed", 20), 0)
    assert affected == TRUNCATED


def test_control_permanent_fault_is_detected(tmp_path: Path) -> None:
    """The model is loaded again and again, and never ready."""
    backend = FaultySpeech(default=Plan(NUM_FRAMES))
    settings = ServeSettings(port=0, voices=tmp_path, drain_timeout_s=0.5)
    with running(settings, backend.load) as server:
        broken = FaultyServer(server, backend)
        assert broken.is_ready
        backend.broken = RuntimeError("it is gone")
        assert receive(server.url, threading.Event()) not in (WHOLE, TRUNCATED)
        wait_until(lambda: not broken.is_ready, LIMIT_S)


# -- the disk ------------------------------------------------------------------------------------


def recording() -> bytes:
    noise = np.random.default_rng(1).normal(0, 0.1, 30_000).astype(np.float32)
    buffer = io.BytesIO()
    soundfile.write(buffer, noise, 24_000, format="WAV")
    return buffer.getvalue()


def test_full_disk_is_a_server_error_and_leaves_no_file(tiny_folder: Path, tmp_path: Path) -> None:
    models = (ModelSpec("base", str(tiny_folder / "base")),)
    settings = ServeSettings(port=0, models=models, voices=tmp_path, device="cpu")
    files = {"audio_sample": ("me.wav", recording(), "audio/wav")}

    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    with running(settings) as server:
        url = f"{server.url}/v1/audio/voices"
        for code, status in ((errno.ENOSPC, 507), (errno.EROFS, 500)):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(os, "fsync", refuse)
                answer = httpx.post(url, files=files, data={"name": "me"}, timeout=LIMIT_S)
            assert answer.status_code == status, answer.text
            assert os.strerror(code) in answer.json()["error"]["message"]
            assert str(tmp_path) not in answer.text
            assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
        answer = httpx.post(url, files=files, data={"name": "me"}, timeout=LIMIT_S)
        assert answer.status_code == 200


# -- file descriptors ----------------------------------------------------------------------------


@pytest.mark.ci
def test_server_recovers_after_running_out_of_file_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Idle connections take all descriptors while four clients stream; then they close."""
    monkeypatch.setenv("SCRIPTED_FILES", "24")
    with forked("--drain-timeout=30") as servers, contextlib.ExitStack() as crowd:
        pid, url = servers.start()
        limits = Path(f"/proc/{pid}/limits").read_text("ascii").splitlines()
        most = int(next(line for line in limits if "open files" in line).split()[3])
        load = Load(url, (receive_http,) * 4)
        load.start()
        load.wait_begun()
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        for _ in range(60):
            crowd.enter_context(socket.create_connection(address, timeout=LIMIT_S))
        wait_until(lambda: len(os.listdir(f"/proc/{pid}/fd")) == most, LIMIT_S)
        assert set(load.end()) == {WHOLE}
        crowd.close()
        assert receive_http(url, threading.Event()) == WHOLE
        os.kill(pid, signal.SIGTERM)
        assert servers.wait() == 0


# -- processes, by hand --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("num_kills", [20])
def test_killed_server_leaves_nothing_and_restarts(num_kills: int) -> None:
    outcomes: list[str] = []
    with forked("--drain-timeout=2") as servers:
        for _ in range(num_kills):
            pid, url = servers.start()
            load = Load(url, (receive_http,) * 4)
            load.start()
            load.wait_begun()
            os.kill(pid, signal.SIGKILL)
            assert servers.wait() == -signal.SIGKILL
            results = load.end()
            assert set(results) == {MARKED}, results
            outcomes += results.elements()
            wait_until(lambda pid=pid: is_gone(pid), 2.0)  # type: ignore[misc]
            assert is_free(int(url.rpartition(":")[2]))
    record("G8 kills of the server", cases=num_kills, streams=len(outcomes), taken_for_whole=0)


@pytest.mark.slow
def test_suspended_server_continues() -> None:
    with forked("--drain-timeout=30") as servers:
        pid, url = servers.start()
        load = Load(url, (receive_http,) * 4)
        load.start()
        load.wait_begun()
        os.kill(pid, signal.SIGSTOP)
        time.sleep(3.0)
        os.kill(pid, signal.SIGCONT)
        assert set(load.end()) == {WHOLE}
        os.kill(pid, signal.SIGTERM)
        assert servers.wait() == 0
