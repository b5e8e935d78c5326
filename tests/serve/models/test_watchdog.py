"""Detection of hung engines and of queues that stay full."""

from __future__ import annotations

import threading
from pathlib import Path

import httpx

from tests.support.scripted_tts import ScriptedSpeech
from tests.support.serving import running
from tests.support.websocket_client import wait_until
from vivace.serve.models.watchdog import (
    FULL_TICKS,
    HANG_TICKS,
    MIN_FULL_TICKS,
    FullQueueDetector,
    Watchdog,
)
from vivace.serve.settings import ServeSettings

LIMIT_S = 60.0
SPEECH = {"input": "Hello.", "voice": "alloy", "response_format": "pcm"}


def test_watchdog_reports_only_a_turn_that_spans_all_ticks() -> None:
    watchdog = Watchdog()
    assert not any(watchdog.tick(None) for _ in range(100))  # idle
    assert not any(watchdog.tick(turn / 2) for turn in range(100))  # a new turn at each tick
    reports = [watchdog.tick(7.0) for _ in range(HANG_TICKS + 2)]
    assert reports == [False] * HANG_TICKS + [True] * 2
    assert not watchdog.tick(8.0)  # the next turn
    assert not any(watchdog.tick(at) for at in [*[9.0] * HANG_TICKS, None, 9.0])


def test_full_queue_with_one_free_tick_stays_full() -> None:
    detector = FullQueueDetector()
    assert not any(detector.tick(True) for _ in range(MIN_FULL_TICKS - 1))
    assert detector.tick(True)
    assert detector.tick(False)
    assert detector.tick(True)


def test_queue_with_regular_free_ticks_is_not_full() -> None:
    detector = FullQueueDetector()
    reports = [detector.tick(tick % 4 != 0) for tick in range(10 * FULL_TICKS)]
    assert not any(reports)


def test_full_state_clears_after_three_free_ticks() -> None:
    detector = FullQueueDetector()
    for _ in range(FULL_TICKS):
        detector.tick(True)
    assert [detector.tick(False) for _ in range(3)] == [True, True, False]


def test_server_with_a_full_queue_is_not_ready_until_a_slot_is_free(tmp_path: Path) -> None:
    backend = ScriptedSpeech(max_streams=1, max_queue=0)
    settings = ServeSettings(port=0, voices=tmp_path, full_timeout_s=0.2, max_queue=0)
    with running(settings, backend.load) as server:

        def status() -> tuple[int, str]:
            response = httpx.get(f"{server.url}/health/ready", timeout=LIMIT_S)
            return response.status_code, response.json()["status"]

        def speak() -> None:
            httpx.post(f"{server.url}/v1/audio/speech", json=SPEECH, timeout=LIMIT_S)

        backend.is_open.clear()
        speaking = threading.Thread(target=speak)
        speaking.start()
        try:
            wait_until(lambda: status() == (503, "full"))
            assert httpx.get(f"{server.url}/health/live").status_code == 200
            assert "vivace_queue_full 1.0" in httpx.get(f"{server.url}/metrics").text
        finally:
            backend.is_open.set()
            speaking.join(LIMIT_S)
        wait_until(lambda: status() == (200, "ready"))
