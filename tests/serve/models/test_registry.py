"""Requests to models that are loading, idle or broken."""

from __future__ import annotations

import gc
import json
import re
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import connect

from tests.support.network import free_port
from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.serving import Running, running
from tests.support.websocket_client import wait_until
from vivace import TTS
from vivace.cli import serve as cli_serve
from vivace.errors import CheckpointError, EngineError
from vivace.serve.context import ServeContext
from vivace.serve.models import recovery
from vivace.serve.settings import ModelSpec, ServeSettings

LIMIT_S = 60.0
SPEECH = {"model": "tts-1", "input": "Hello.", "voice": "alloy", "response_format": "pcm"}


def speak(url: str, **fields: object) -> httpx.Response:
    return httpx.post(f"{url}/v1/audio/speech", json=SPEECH | fields, timeout=LIMIT_S)


def test_loading_server_answers_health_and_returns_503_with_retry_after(
    tmp_path: Path,
) -> None:
    may_load, began = threading.Event(), threading.Event()
    found: list[str] = []
    backend = ScriptedSpeech()

    def load(spec: ModelSpec) -> TTS:
        began.set()
        assert may_load.wait(LIMIT_S)
        return backend.load(spec)

    def ask(url: str) -> None:
        assert httpx.get(f"{url}/health/live").status_code == 200
        ready = httpx.get(f"{url}/health/ready")
        assert (ready.status_code, ready.json()) == (503, {"status": "loading"})
        answer = speak(url)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "loading")
        assert int(answer.headers["retry-after"]) >= 1
        assert int(answer.headers["retry-after-ms"]) >= 1
        found.append(url)

    def watch() -> None:
        try:
            assert began.wait(LIMIT_S)
            ask(f"http://127.0.0.1:{port}")
        finally:
            may_load.set()

    port = free_port()
    watcher = threading.Thread(target=watch)
    watcher.start()
    with running(ServeSettings(port=port, voices=tmp_path), load) as server:
        watcher.join(LIMIT_S)
        assert found
        assert httpx.get(f"{server.url}/health/ready").status_code == 200
        assert speak(server.url).status_code == 200


def test_model_that_cannot_be_loaded_ends_the_server(tmp_path: Path) -> None:
    def load(spec: ModelSpec) -> TTS:
        raise CheckpointError("no such folder")

    with (
        pytest.raises(CheckpointError, match="no such folder"),
        running(ServeSettings(port=0, voices=tmp_path), load),
    ):
        pass


def test_model_with_a_failed_probe_is_not_served(tmp_path: Path) -> None:
    backend = ScriptedSpeech(broken=RuntimeError("the GPU is gone"))
    with (
        pytest.raises(Exception, match="the GPU is gone"),
        running(ServeSettings(port=0, voices=tmp_path), backend.load),
    ):
        pass


def test_idle_model_is_unloaded_and_loaded_again(tmp_path: Path) -> None:
    loaded: list[TTS] = []
    backend = ScriptedSpeech()

    def load(spec: ModelSpec) -> TTS:
        loaded.append(backend.load(spec))
        return loaded[-1]

    with running(ServeSettings(port=0, voices=tmp_path, unload_after_s=0.2), load) as server:
        first = speak(server.url).content
        wait_until(lambda: not server.context.models.loaded())
        wait_until(lambda: "closed" in repr(loaded[0]))  # closed after it is removed
        assert httpx.get(f"{server.url}/health/ready").status_code == 200
        assert httpx.get(f"{server.url}/v1/models").json()["data"][0]["id"] == "vivace"
        assert httpx.get(f"{server.url}/v1/audio/voices").json()["voices"]
        again = speak(server.url)
        assert (again.status_code, again.content) == (200, first)
        assert len(loaded) >= 2


def test_garbage_collection_skips_loaded_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real_freeze: None
) -> None:
    """A collection of all modules would take 0.1 s, during which nothing is served."""
    frozen = []

    class Ready:
        wyoming_url = None

        def __init__(self, context: ServeContext, **options: object) -> None:
            self.context = context

        async def serve(self, on_ready: Callable[[str], None]) -> None:
            on_ready("http://127.0.0.1:1")
            frozen.append(gc.get_freeze_count())

    monkeypatch.setattr("vivace.serve.server.Server", Ready)
    gc.unfreeze()
    num_objects = len(gc.get_objects())
    try:
        assert cli_serve._serve(ServeSettings(port=0, voices=tmp_path)) == 0
    finally:
        gc.unfreeze()
    assert frozen[0] > num_objects / 2


def test_unloaded_model_is_freed_from_the_frozen_heap(tmp_path: Path, real_freeze: None) -> None:
    loaded: list[weakref.ref[TTS]] = []

    def load(spec: ModelSpec) -> TTS:
        tts = ScriptedSpeech().load(spec)
        vars(tts)["itself"] = tts  # a reference cycle, as CUDA graphs have
        loaded.append(weakref.ref(tts))
        return tts

    with running(ServeSettings(port=0, voices=tmp_path, unload_after_s=1.0), load) as server:
        gc.freeze()  # as `vivace serve` does
        wait_until(lambda: not server.context.models.loaded())
        wait_until(lambda: loaded[0]() is None)


def test_speaking_model_is_not_unloaded(tmp_path: Path) -> None:
    backend = ScriptedSpeech(default=Plan(60), step_s=0.05)
    settings = ServeSettings(port=0, voices=tmp_path, unload_after_s=0.05)
    with running(settings, backend.load) as server:
        answer = speak(server.url)
        assert answer.status_code == 200
        assert len(answer.content) == 60 * 1_920 * 2


def test_model_waiting_for_live_text_is_not_unloaded(tmp_path: Path) -> None:
    """A second model, used later and unloaded, shows that the idle time has passed."""
    specs = (ModelSpec("waiting", None), ModelSpec("idle", None))
    settings = ServeSettings(port=0, voices=tmp_path, models=specs, unload_after_s=0.1)
    with running(settings, lambda spec: ScriptedSpeech().load(spec)) as server:
        url = f"{server.url.replace('http', 'ws')}/v1/audio/speech/stream"
        with connect(url, proxy=None) as opened:
            opened.send(json.dumps({"type": "session.config", "response_format": "pcm"}))
            opened.send(json.dumps({"type": "input.text", "text": "Hello"}))
            wait_until(lambda: server.context.streams.num_active == 1)
            [waiting] = [one for one in server.context.models.loaded() if one.name == "waiting"]
            assert speak(server.url, model="idle").status_code == 200
            wait_until(lambda: len(server.context.models.loaded()) == 1)
            assert server.context.models.loaded() == [waiting]
            opened.send(json.dumps({"type": "input.text", "text": " there."}))
            opened.send(json.dumps({"type": "input.done"}))
            text = ""
            while "session.done" not in text:
                message = opened.recv(timeout=LIMIT_S)
                text = message if isinstance(message, str) else ""
                assert '"type":"error"' not in text


def test_broken_backend_is_loaded_again_in_the_same_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "BACKOFF_S", (0.05,))
    backends = [ScriptedSpeech(), ScriptedSpeech(broken=RuntimeError("still broken"))]
    backends.append(ScriptedSpeech())
    waiting = list(backends)

    with running(
        ServeSettings(port=0, voices=tmp_path), lambda spec: waiting.pop(0).load(spec)
    ) as server:
        assert speak(server.url).status_code == 200
        backends[0].broken = RuntimeError("CUDA error: an illegal memory access")
        answer = speak(server.url)
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "engine_failed"
        wait_until(lambda: not waiting and server.context.models.is_ready)
        assert speak(server.url).status_code == 200
        assert "vivace_rebuilds_total" in httpx.get(f"{server.url}/metrics").text
        assert speaks(backends[2])


def test_model_that_stays_broken_ends_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "BACKOFF_S", (0.01, 0.01))
    backend = ScriptedSpeech()
    with pytest.raises(EngineError, match="vivace crashed and cannot be loaded again"):
        break_for_good(backend, tmp_path)


def break_for_good(backend: ScriptedSpeech, voices: Path) -> None:
    with running(ServeSettings(port=0, voices=voices), backend.load) as server:
        backend.broken = RuntimeError("CUDA error: device lost")
        assert speak(server.url).status_code == 500
        wait_until(lambda: not server.context.models.is_ready)
        wait_until(server.loop.is_closed)


def test_burst_is_admitted_up_to_slots_and_queue(tmp_path: Path) -> None:
    backend = ScriptedSpeech(default=Plan(10), max_streams=2, max_queue=1)
    with running(ServeSettings(port=0, voices=tmp_path), backend.load) as server:
        backend.is_open.clear()
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(speak, server.url) for _ in range(8)]
            wait_until(lambda: sum(one.done() for one in asked) == 5)
            for refused in (one.result() for one in asked if one.done()):
                assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
                assert float(refused.headers["retry-after-ms"]) > 0
            text = httpx.get(f"{server.url}/metrics").text
            assert 'vivace_slots{model="vivace"} 2' in text
            assert 'vivace_max_queue{model="vivace"} 1' in text
            backend.is_open.set()
            assert sorted(one.result().status_code for one in asked) == [200] * 3 + [429] * 5


def speaks(backend: ScriptedSpeech) -> bool:
    return backend.num_admitted >= 2  # the probe and a request


def test_failed_request_does_not_unload_the_model(tmp_path: Path) -> None:
    backend = ScriptedSpeech(plans={5: Plan(fails_at=3), 6: Plan(is_refused=True)})
    with running(ServeSettings(port=0, voices=tmp_path), backend.load) as server:
        before = server.context.models.loaded()
        for seed in (5, 6):
            with pytest.raises(httpx.HTTPError) if seed == 5 else NoError():
                assert speak(server.url, seed=seed).status_code >= 400
        assert speak(server.url).status_code == 200
        assert server.context.models.loaded() == before


class NoError:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def test_metrics_count_served_requests(server: Running) -> None:
    assert speak(server.url).status_code == 200
    text = httpx.get(f"{server.url}/metrics").text
    assert 'vivace_http_requests_total{route="/v1/audio/speech",status="200"} 1' in text
    assert 'vivace_streams_total{model="vivace"} 1' in text
    assert 'vivace_first_audio_seconds_count{model="vivace"} 1' in text
    assert 'vivace_audible_seconds_count{model="vivace"} 1' in text
    assert "vivace_active_streams 0" in text
    assert re.search(r'vivace_frames_total\{model="vivace"\} [1-9]', text)
    for line in text.splitlines():
        assert line.startswith("#") or len(line.rsplit(" ", 1)) == 2
