"""Missing words and retries in responses, events, metrics, logs and traces."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.scripted_attention import FollowedBackend, early_end
from tests.support.serving import Running, running
from tests.support.websocket_client import connected
from vivace.engine.utterances.retry import MAX_RETRIES
from vivace.serve.observability.logs import JsonFormatter
from vivace.serve.settings import ServeSettings

TEXT = "Seven grey herons stood beside the old canal."
BROKEN = 7  # a seed whose speech always ends early
REPAIRED = 8  # a seed whose speech ends early once


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    voices: Path = tmp_path_factory.mktemp("voices")
    backend = FollowedBackend(courses={REPAIRED: early_end, **dict.fromkeys(_tries(), _nothing)})
    with running(ServeSettings(port=0, voices=voices), backend.load) as opened:
        yield opened


def _tries() -> list[int]:
    from vivace.engine.utterances.retry import retry_seed

    return [retry_seed(BROKEN, number) for number in range(MAX_RETRIES + 1)]


def _nothing(places: list[int]) -> list[int]:
    """Ends after half of the text, and at once in a retry."""
    return early_end(places) if places and places[0] == 0 else []


def speak(server: Running, **fields: Any) -> httpx.Response:
    body = {"model": "tts-1", "input": TEXT, "response_format": "pcm", **fields}
    return httpx.post(f"{server.url}/v1/audio/speech", json=body, timeout=60)


def usage_of(response: httpx.Response) -> dict[str, Any]:
    lines = [line for line in response.text.splitlines() if line.startswith("data: ")]
    usage: dict[str, Any] = json.loads(lines[-1].removeprefix("data: "))["usage"]
    return usage


def read_metric(server: Running, name: str) -> float:
    text = httpx.get(f"{server.url}/metrics").text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


@pytest.mark.parametrize("stream", [True, False])
def test_event_usage_of_complete_speech_reports_no_missing_words(
    server: Running, stream: bool
) -> None:
    usage = usage_of(speak(server, stream_format="sse", stream=stream, seed=1))
    assert (usage["completeness"], usage["missing_words"], usage["retries"]) == (1.0, [], 0)


@pytest.mark.parametrize("stream", [True, False])
def test_event_usage_after_a_repair_reports_the_retry(server: Running, stream: bool) -> None:
    usage = usage_of(speak(server, stream_format="sse", stream=stream, seed=REPAIRED))
    assert (usage["completeness"], usage["missing_words"], usage["retries"]) == (1.0, [], 1)


@pytest.mark.parametrize("stream", [True, False])
def test_event_usage_of_lost_speech_names_the_words(server: Running, stream: bool) -> None:
    usage = usage_of(speak(server, stream_format="sse", stream=stream, seed=BROKEN))
    assert 0.0 < usage["completeness"] < 1.0
    assert usage["missing_words"][-2:] == ["old", "canal."]
    assert usage["retries"] == MAX_RETRIES


def test_whole_response_headers_count_missing_words(server: Running) -> None:
    whole = speak(server, stream=False, seed=1).headers
    assert (whole["x-vivace-completeness"], whole["x-vivace-missing-words"]) == ("1", "0")
    lost = speak(server, stream=False, seed=BROKEN).headers
    assert float(lost["x-vivace-completeness"]) < 1
    assert int(lost["x-vivace-missing-words"]) >= 2


def test_omni_socket_done_message_reports_missing_words(server: Running) -> None:
    with connected(server) as talk:
        talk.send("session.config", response_format="pcm", seed=BROKEN)
        [done] = [m for m in talk.speak(TEXT) if isinstance(m, dict) and m["type"] == "audio.done"]
    assert done["missing_words"][-1] == "canal."
    assert done["retries"] == MAX_RETRIES


def test_counters_start_at_zero_and_count_words_and_retries(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    names = "vivace_words_missing_total", "vivace_utterance_retries_total"
    backend = FollowedBackend(default=_nothing)
    settings = ServeSettings(port=0, voices=tmp_path_factory.mktemp("voices"))
    with running(settings, backend.load) as server:
        text = httpx.get(f"{server.url}/metrics").text
        for name in names:
            [line] = [line for line in text.splitlines() if line.startswith(f"{name}{{")]
            assert line.endswith(" 0.0")
        usage = usage_of(speak(server, stream_format="sse"))
        assert [read_metric(server, name) for name in names] == [
            len(usage["missing_words"]),
            MAX_RETRIES,
        ]


def test_log_line_of_lost_words_counts_them_without_the_text(server: Running) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("vivace.serve.streams.active")
    logger.addHandler(handler)
    try:
        num_missing = len(
            usage_of(speak(server, stream_format="sse", seed=BROKEN))["missing_words"]
        )
    finally:
        logger.removeHandler(handler)
    [line] = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (line["level"], line["words_missing"], line["words"]) == ("warning", num_missing, 8)
    assert "canal" not in stream.getvalue()
