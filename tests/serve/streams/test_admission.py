"""Requests with a long estimated wait are refused before any other work.

While the gate of the scripted backend is closed, no frame is made and every utterance is expected
to take `UTTERANCE_S`. So the estimates do not depend on the speed of the machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from tests.support.websocket_client import connected, wait_until
from vivace.engine.turns.wait import WaitEstimator
from vivace.serve.errors import RefusedError
from vivace.serve.models.voices import Voices
from vivace.serve.routes import speech
from vivace.serve.settings import ModelSpec, ServeSettings
from vivace.serve.speaking.request import SpeechRequest
from vivace.serve.streams.admission import Admission
from vivace.serve.streams.encoders import SpeechEncoder

UTTERANCE_S = 4.0
MAX_WAIT_S = 10.0
NUM_TAKEN = 3  # with one slot the fourth request would wait 12 s
NUM_REQUESTS = 48
BODY = {"model": "tts-1", "voice": "alloy", "input": "Hello there.", "response_format": "pcm"}


@pytest.fixture(scope="module", autouse=True)
def fixed_estimates() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WaitEstimator, "_left_s", lambda *_: UTTERANCE_S)
        patch.setattr(WaitEstimator, "_length", lambda self, one: UTTERANCE_S / self.frame_s)
        patch.setattr(WaitEstimator, "observe_end", lambda *_, **__: None)
        defaults = (4.0, UTTERANCE_S, 1.0, 0.0, True)  # 4 frames per second for each stream
        patch.setattr(WaitEstimator.__init__, "__defaults__", defaults)
        yield


Opened = tuple[Running, ScriptedSpeech]


@contextmanager
def opened(folder: Path, *, max_queue: int = 64, **settings: Any) -> Iterator[Opened]:
    backend = ScriptedSpeech(default=Plan(10), max_streams=1, max_queue=max_queue)
    served = ServeSettings(port=0, voices=folder, **{"max_wait_s": MAX_WAIT_S, **settings})
    with running(served, backend.load) as server:
        yield server, backend


@contextmanager
def gated(server: Running, backend: ScriptedSpeech) -> Iterator[Opened]:
    """Make no frame until the gate is opened or the block ends."""
    backend.is_open.clear()
    try:
        yield server, backend
    finally:
        backend.is_open.set()
        wait_until(lambda: server.context.streams.num_active == 0)
        engines = [model.tts.engine for model in server.context.models.loaded()]
        wait_until(lambda: all(engine.busy_since is None for engine in engines))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    with opened(tmp_path_factory.mktemp("voices")) as both:
        yield both


@pytest.fixture
def busy(shared: Opened) -> Iterator[Opened]:
    with gated(*shared) as both:
        yield both


def ask(url: str, path: str = "/v1/audio/speech", **fields: Any) -> httpx.Response:
    return httpx.post(f"{url}{path}", json={**BODY, **fields}, timeout=60.0)


@contextmanager
def filled(server: Running, num_streams: int = NUM_TAKEN) -> Iterator[list[Future[httpx.Response]]]:
    """Fill the slot and places in the queue."""
    with ThreadPoolExecutor(num_streams) as pool:
        asked = [pool.submit(ask, server.url) for _ in range(num_streams)]
        engine = server.context.models.loaded()[0].tts.engine
        wait_until(lambda: (engine.num_running, engine.num_waiting) == (1, num_streams - 1))
        yield asked


@pytest.mark.ci
def test_burst_beyond_max_wait_is_refused_and_the_rest_is_served(busy: Opened) -> None:
    server, backend = busy
    with ThreadPoolExecutor(NUM_REQUESTS) as pool:
        asked = [pool.submit(ask, server.url) for _ in range(NUM_REQUESTS)]
        wait_until(lambda: sum(one.done() for one in asked) == NUM_REQUESTS - NUM_TAKEN)
        refused = [one.result() for one in asked if one.done()]
        assert {answer.status_code for answer in refused} == {429}
        assert {answer.json()["error"]["code"] for answer in refused} == {"queue_full"}
        assert {answer.headers["retry-after"] for answer in refused} == {"2"}
        assert {answer.headers["retry-after-ms"] for answer in refused} == {"2000"}
        assert "--max-wait" in refused[0].json()["error"]["message"]
        backend.is_open.set()
        assert sum(one.result().status_code == 200 for one in asked) == NUM_TAKEN
        assert ask(server.url).status_code == 200


@pytest.mark.ci
def test_control_without_limit_takes_the_whole_burst(tmp_path: Path) -> None:
    with (
        opened(tmp_path, max_wait_s=1e6) as both,
        gated(*both) as (server, backend),
        filled(server, 12) as asked,
    ):
        backend.is_open.set()
        assert {one.result().status_code for one in asked} == {200}


def test_max_wait_of_zero_admits_only_requests_with_a_free_slot(tmp_path: Path) -> None:
    with opened(tmp_path, max_wait_s=0.0) as (server, backend):
        for _ in range(3):  # a failed request frees its place
            assert ask(server.url, voice="nobody").status_code == 400
        with gated(server, backend), filled(server, 1):
            assert ask(server.url).status_code == 429
            backend.is_open.set()


def test_full_queue_refuses_although_the_wait_is_short(tmp_path: Path) -> None:
    with opened(tmp_path, max_queue=1, max_wait_s=1e6) as both, gated(*both) as (server, backend):
        with filled(server, 2):
            answer = ask(server.url)
            backend.is_open.set()
        assert answer.status_code == 429
        assert "--max-queue" in answer.json()["error"]["message"]


# -- before any other work -------------------------------------------------------------------


class Counter:
    """Replaces functions and counts their calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self._monkeypatch = monkeypatch

    def watch(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            return original(*args, **kwargs)

        kept = staticmethod(counted) if isinstance(owner, type) and name == "read" else counted
        self._monkeypatch.setattr(owner, name, kept)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Counter:
    counter = Counter(monkeypatch)
    counter.watch(SpeechEncoder, "__init__")
    counter.watch(Voices, "choose")
    counter.watch(speech, "read_json")
    counter.watch(SpeechRequest, "read")
    return counter


def test_busy_server_refuses_before_reading_body_voice_and_encoder(
    busy: Opened, work: Counter
) -> None:
    server, backend = busy
    with filled(server):
        work.calls.clear()
        with ThreadPoolExecutor(NUM_REQUESTS) as pool:
            asked = [pool.submit(ask, server.url) for _ in range(NUM_REQUESTS)]
            assert {one.result().status_code for one in asked} == {429}
        assert work.calls == []
        backend.is_open.set()
    assert ask(server.url).status_code == 200  # control: a served request calls all functions
    assert set(work.calls) == {"__init__", "choose", "read_json", "read"}


def test_refusal_is_counted_by_route_and_as_a_failure(busy: Opened) -> None:
    server, backend = busy
    names = (
        'vivace_http_requests_total{route="/v1/audio/speech",status="429"} ',
        'vivace_stream_failures_total{code="queue_full",status="429"} ',
    )
    with filled(server):
        before = [level(server, name) for name in names]
        assert ask(server.url).status_code == 429
        assert [level(server, name) - 1 for name in names] == before
        assert level(server, 'vivace_estimated_wait_seconds{model="vivace"} ') == 12
        backend.is_open.set()


def level(server: Running, name: str) -> float:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def test_elevenlabs_request_is_refused_too(busy: Opened) -> None:
    server, backend = busy
    with filled(server):
        answer = ask(server.url, "/v1/text-to-speech/alloy", text="Hello.")
        backend.is_open.set()
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")


def test_socket_utterance_is_refused_and_the_session_goes_on(busy: Opened) -> None:
    server, backend = busy
    with connected(server) as talk:
        talk.send("session.config", response_format="pcm")
        with filled(server):
            refused = talk.speak("Hello.")[0]
            assert isinstance(refused, dict)
            assert (refused["code"], refused["retry_after_ms"]) == ("queue_full", 2_000)
            backend.is_open.set()
        wait_until(lambda: server.context.streams.num_active == 0)
        assert any(isinstance(each, bytes) for each in talk.speak("Hello."))


def test_busy_model_refuses_and_an_idle_model_serves(tmp_path: Path, work: Counter) -> None:
    busy, free = (ScriptedSpeech(default=Plan(10), max_streams=1) for _ in range(2))
    backends = {"busy": busy, "free": free}
    models = (ModelSpec("busy", None), ModelSpec("free", None))
    settings = ServeSettings(port=0, voices=tmp_path, models=models, max_wait_s=MAX_WAIT_S)
    with running(settings, lambda spec: backends[spec.name].load(spec)) as server:
        busy.is_open.clear()
        try:
            with ThreadPoolExecutor(NUM_TAKEN) as pool:
                asked = [pool.submit(ask, server.url, model="busy") for _ in range(NUM_TAKEN)]
                engine = server.context.models.loaded()[0].tts.engine
                wait_until(lambda: engine.num_running + engine.num_waiting == NUM_TAKEN)
                work.calls.clear()
                assert ask(server.url, model="busy").status_code == 429
                assert work.calls == ["read_json", "read"]  # the body names the model
                assert ask(server.url, model="free").status_code == 200
                busy.is_open.set()
                assert {one.result().status_code for one in asked} == {200}
        finally:
            busy.is_open.set()


# -- admitted requests -----------------------------------------------------------------------------


def test_admitted_request_is_expected_until_its_stream_begins(busy: Opened) -> None:
    server, _ = busy
    model = server.context.models.loaded()[0]
    admission = Admission(server.context.models, server.context.metrics, MAX_WAIT_S)
    with admission.admit(model) as first, admission.admit(model), admission.admit(model):
        with pytest.raises(RefusedError), admission.admit(model):
            pass
        first.stream, first.has_whole_text = model.tts.astream(iter(["Hello."])), False
        with admission.admit(model):  # a live text without words is not expected
            pass
    admission.check()


def test_client_that_disconnects_in_the_queue_frees_its_place(busy: Opened) -> None:
    server, backend = busy

    async def leave(url: str) -> None:
        engine = server.context.models.loaded()[0].tts.engine
        async with httpx.AsyncClient(timeout=60.0) as client:
            waiting = asyncio.create_task(client.post(f"{url}/v1/audio/speech", json=BODY))
            while engine.num_waiting < NUM_TAKEN - 1:
                await asyncio.sleep(0.001)
            assert (await client.post(f"{url}/v1/audio/speech", json=BODY)).status_code == 429
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            while engine.num_waiting > NUM_TAKEN - 2:
                await asyncio.sleep(0.001)

    with filled(server, NUM_TAKEN - 1):
        asyncio.run(asyncio.wait_for(leave(server.url), 60.0))
        server.context.admission.check()
        backend.is_open.set()
