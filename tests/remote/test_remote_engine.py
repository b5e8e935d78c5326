"""Speech through an engine behind a connection: the same samples, errors, timings and ends."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.remote_engine import LIMIT_S, RemotePair, connected
from tests.support.scripted_tts import Plan, ScriptedSpeech
from tests.support.websocket_client import wait_until
from vivace import TTS
from vivace.engine.turn_report import TurnReport
from vivace.errors import AudioError, EngineError, NumericError, QueueFullError
from vivace.remote.utterances import PublishedUtterance
from vivace.serve.settings import ModelSpec
from vivace.speech import LiveMode

TEXT = "Hello there, how are you?"


@pytest.fixture(scope="module")
def pair(embedded: TTS) -> Iterator[RemotePair]:
    with connected(embedded) as found:
        yield found


def load_scripted(backend: ScriptedSpeech) -> TTS:
    return backend.load(ModelSpec("model", None))


def wait_until_idle(backend: ScriptedSpeech) -> None:
    deadline = time.monotonic() + LIMIT_S
    while backend.active_slots:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def samples_of(tts: TTS, text: Any = TEXT, **options: Any) -> tuple[Any, list[int], Any]:
    """The samples, the chunk lengths and the last chunk of a stream."""
    chunks = list(tts.stream(text, seed=3, **options))
    sizes = [len(chunk.samples) for chunk in chunks]
    return np.concatenate([chunk.samples for chunk in chunks]), sizes, chunks[-1]


@pytest.mark.parametrize("options", [{}, {"timings": True}, {"chunk_frames": 3, "speed": 1.2}])
def test_remote_stream_equals_the_local_stream(pair: RemotePair, options: dict[str, Any]) -> None:
    expected, sizes, last = samples_of(pair.local, **options)
    found, remote_sizes, remote_last = samples_of(pair.remote, **options)
    np.testing.assert_array_equal(found, expected)
    assert remote_sizes == sizes
    assert remote_last.finish_reason == last.finish_reason == "stop"
    assert remote_last.words == last.words
    for name in ("text_tokens", "frames", "completeness", "missing_words", "num_words", "retries"):
        assert getattr(remote_last.usage, name) == getattr(last.usage, name), name
    assert last.usage.completeness is not None  # the words were followed in the engine


def test_utterances_of_the_host_are_freed_without_a_garbage_collection(pair: RemotePair) -> None:
    """A server collects garbage rarely, and an utterance holds its samples."""

    def num_hosted() -> int:
        return sum(isinstance(one, PublishedUtterance) for one in gc.get_objects())

    gc.collect()
    num_before = num_hosted()
    gc.disable()
    try:
        samples_of(pair.remote)
        with pair.remote.stream(TEXT, seed=3) as stream:  # is cancelled
            next(stream)
            assert num_hosted() > num_before
        wait_until(lambda: num_hosted() == num_before)
    finally:
        gc.enable()


@pytest.mark.parametrize("live", ["sentence", "word"])
def test_remote_live_text_equals_the_local_live_text(pair: RemotePair, live: LiveMode) -> None:
    pieces = ["Hello ", "there, ", "how are ", "you? ", "I am ", "fine."]
    expected, _, last = samples_of(pair.local, iter(pieces), timings=True, live=live)
    found, _, remote_last = samples_of(pair.remote, iter(pieces), timings=True, live=live)
    np.testing.assert_array_equal(found, expected)
    assert remote_last.usage.text_tokens == last.usage.text_tokens


def test_remote_live_text_continues_after_a_pause_of_the_writer(pair: RemotePair) -> None:
    """The engine has spoken all text so far, and waits for more."""

    def write() -> Iterator[str]:
        for piece in ("It was a bright ", "cold day in April, ", "and so on."):
            yield piece
            wait_until(lambda: all(one.needs_text for one in [*pair.link.utterances.values()]))

    expected, _, _ = samples_of(pair.local, write(), live="word")
    found, _, _ = samples_of(pair.remote, write(), live="word")
    np.testing.assert_array_equal(found, expected)


def test_async_streams_share_the_connection(pair: RemotePair) -> None:
    async def speak(seed: int) -> Any:
        stream = pair.remote.astream(TEXT, seed=seed, max_frames=12)
        return [chunk async for chunk in stream]

    async def speak_all() -> list[Any]:
        return list(await asyncio.gather(*map(speak, range(3))))

    for seed, found in enumerate(asyncio.run(speak_all())):
        expected = list(pair.local.stream(TEXT, seed=seed, max_frames=12))
        for name, tolerance in (("codes", 0.0), ("samples", 1e-4)):  # other frames in a rendering
            one, other = (
                [getattr(chunk, name) for chunk in chunks] for chunks in (found, expected)
            )
            np.testing.assert_allclose(np.concatenate(one), np.concatenate(other), atol=tolerance)
    assert not pair.link.utterances


def test_closed_stream_frees_its_slot() -> None:
    backend = ScriptedSpeech(default=Plan(20_000), step_s=0.01)
    with load_scripted(backend) as local, connected(local) as pair:
        stream = pair.remote.stream(TEXT, seed=1)
        next(stream)
        assert local.engine.num_running == 1
        stream.close()
        wait_until_idle(backend)
        assert not pair.link.utterances


def test_lost_client_frees_its_slots_and_fails_its_streams() -> None:
    backend = ScriptedSpeech(default=Plan(20_000), step_s=0.01)
    with load_scripted(backend) as local, connected(local) as pair:
        stream = pair.remote.stream(TEXT, seed=1)
        next(stream)
        pair.link.close()
        with pytest.raises(EngineError, match="ended while it spoke"):
            for _ in stream:
                pass
        assert pair.is_lost.wait(LIMIT_S)
        wait_until_idle(backend)
        with pytest.raises(EngineError, match="being restarted"):
            next(pair.remote.stream(TEXT, seed=1))


@pytest.mark.parametrize(
    ("plan", "error"),
    [(Plan(20, fails_at=6), NumericError), (Plan(is_refused=True), Exception)],
)
def test_error_of_the_engine_is_raised_by_the_stream(plan: Plan, error: type[Exception]) -> None:
    with load_scripted(ScriptedSpeech(default=plan)) as local, connected(local) as pair:
        with pytest.raises(error) as expected:
            list(pair.local.stream(TEXT, seed=1))
        with pytest.raises(error) as found:
            list(pair.remote.stream(TEXT, seed=1))
        assert str(expected.value) in str(found.value)


def test_full_queue_is_refused_with_its_retry_time() -> None:
    backend = ScriptedSpeech(default=Plan(20_000), max_streams=1, max_queue=0, step_s=0.01)
    with load_scripted(backend) as local, connected(local) as pair:
        first = pair.remote.stream(TEXT, seed=1)
        next(first)
        with pytest.raises(QueueFullError) as refused:
            next(pair.remote.stream(TEXT, seed=2))
        assert refused.value.retry_s > 0
        first.close()
        assert pair.load.num_submitted == 2


def test_unread_stream_pauses_the_engine_and_continues() -> None:
    """The frames made ahead are bounded, although the host sends them at once."""
    backend = ScriptedSpeech(default=Plan(400))
    with load_scripted(backend) as local, connected(local) as pair:
        stream = pair.remote.stream(TEXT, seed=1, chunk_frames=2, guard=False)
        next(stream)
        made = [-1]
        while made[-1] != backend.num_made:
            made.append(backend.num_made)
            time.sleep(0.1)
        assert 2 <= made[-1] < 100
        num_samples = sum(len(chunk.samples) for chunk in stream)
        assert num_samples == (400 - 2) * 1_920


def test_turns_are_reported_to_the_stream() -> None:
    with load_scripted(ScriptedSpeech(default=Plan(30))) as local, connected(local) as pair:
        turns = list[TurnReport]()
        stream = pair.remote.stream(TEXT, seed=1)
        stream.on_turn = turns.append
        for _ in stream:
            pass
        assert sum(turn.num_frames for turn in turns) >= 30
        assert all(first.began <= second.began for first, second in pairwise(turns))


def test_clone_in_the_engine_process_equals_the_local_clone(tiny_folder: Path) -> None:
    noise = np.random.default_rng(1).normal(0, 0.1, 24_000).astype(np.float32)
    with TTS.load(tiny_folder / "base", device="cpu") as local, connected(local) as pair:
        options: dict[str, Any] = {"transcript": "One word.", "name": "me", "language": "english"}
        expected = local.clone((noise, 24_000), **options)
        found = pair.remote.clone((noise, 24_000), **options)
        assert found.to_bytes() == expected.to_bytes()
        with pytest.raises(AudioError):
            pair.remote.clone((noise[:100], 24_000))
