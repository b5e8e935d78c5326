"""The estimated wait of a new request, with utterances of known lengths and speeds."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.scripted_backend import (
    ScriptedBackend,
    SpeakingBackend,
    open_blocks,
    script,
    wait_until,
)
from vivace.engine.engine import Engine
from vivace.engine.limits import EngineLimits
from vivace.engine.turns.wait import WaitEstimator
from vivace.engine.utterances.utterance import Utterance
from vivace.errors import QueueFullError
from vivace.speech import SamplingParams

NOW = 100.0


@dataclass
class Speech:
    """An utterance that has made `num_made` frames since `since`."""

    num_text_ids: int = 10
    is_text_complete: bool = True
    since: float = NOW
    num_made: int = 0

    def __post_init__(self) -> None:
        self.num_rendered = self.num_made


def measured(**averages: float) -> WaitEstimator:
    """40 frames per utterance, 4 per text id, 50 per second."""
    values: dict[str, Any] = {"frames_per_id": 4.0, "num_frames": 40.0, "frame_s": 0.02, **averages}
    return WaitEstimator(**values)


def estimate(
    running: list[Speech],
    queued: list[Speech] | None = None,
    *,
    num_slots: int,
    num_expected: int = 0,
    averages: WaitEstimator | None = None,
) -> float:
    return (averages or measured()).estimate_s(
        running, queued or [], num_slots=num_slots, now=NOW, num_expected=num_expected
    )


def test_wait_with_free_slot_is_zero() -> None:
    assert estimate([Speech()], num_slots=2) == 0.0
    assert estimate([Speech()], [Speech()], num_slots=3) == 0.0
    assert estimate([Speech()], num_slots=2, num_expected=1) > 0.0


def test_wait_for_running_utterance_uses_its_own_speed() -> None:
    slow = Speech(since=NOW - 10.0, num_made=20)  # 2 frames a second, 20 of 40 are left
    fast = Speech(since=NOW - 0.2, num_made=20)  # 100 frames a second
    assert estimate([slow], num_slots=1) == pytest.approx(10.0)
    assert estimate([slow, fast], num_slots=2) == pytest.approx(0.2)


def test_wait_for_utterance_without_frames_uses_average_speed() -> None:
    assert estimate([Speech()], num_slots=1) == pytest.approx(40 * 0.02)


def test_wait_grows_with_text_length_of_queued_utterances() -> None:
    short, long = Speech(num_text_ids=5), Speech(num_text_ids=50)
    behind_short = estimate([Speech()], [short], num_slots=1)
    behind_long = estimate([Speech()], [long], num_slots=1)
    assert behind_short == pytest.approx((40 + 20) * 0.02)
    assert behind_long == pytest.approx((40 + 200) * 0.02)


def test_wait_with_several_slots_takes_the_first_that_becomes_free() -> None:
    running = [Speech(num_text_ids=ids) for ids in (10, 20, 30)]
    queued = [Speech(num_text_ids=5)]
    assert estimate(running, num_slots=3) == pytest.approx(40 * 0.02)
    assert estimate(running, queued, num_slots=3) == pytest.approx(60 * 0.02)
    assert estimate(running, queued * 2, num_slots=3) == pytest.approx(80 * 0.02)


def test_wait_counts_requests_that_are_accepted_and_not_queued() -> None:
    assert estimate([Speech()], num_slots=1, num_expected=3) == pytest.approx(4 * 40 * 0.02)


def test_wait_for_overdue_utterance_is_not_zero() -> None:
    overdue = Speech(since=NOW - 2.0, num_made=100)
    assert estimate([overdue], num_slots=1) == pytest.approx(0.1 * 40 * 0.02)


def test_wait_for_live_text_assumes_at_least_an_average_utterance() -> None:
    live = Speech(num_text_ids=1, is_text_complete=False)
    assert estimate([live], num_slots=1) == pytest.approx(40 * 0.02)


def test_averages_follow_finished_utterances() -> None:
    averages = WaitEstimator()
    for _ in range(40):
        averages.observe_end(Speech(num_text_ids=20, num_made=60), 3.0, is_complete=True)
    assert averages.frames_per_id == pytest.approx(3.0)
    assert averages.num_frames == pytest.approx(60.0)
    assert averages.frame_s == pytest.approx(0.05)
    averages.observe_end(Speech(num_text_ids=20, num_made=2), 0.1, is_complete=False)
    assert averages.frames_per_id == pytest.approx(3.0)  # cut utterances do not count


def test_utterance_of_few_frames_is_not_measured() -> None:
    averages = WaitEstimator()
    averages.observe_end(Speech(num_made=7), 70.0, is_complete=True)
    assert averages == WaitEstimator()


def test_first_measured_utterance_replaces_the_guesses() -> None:
    averages = WaitEstimator()
    averages.observe_end(Speech(num_text_ids=20, num_made=60), 30.0, is_complete=True)
    assert averages.frame_s == pytest.approx(0.5)


def test_wait_without_shared_turns_counts_utterances_before_their_first_audio() -> None:
    averages = measured()
    averages.observe_admission(0.5)
    running = [Speech(), Speech(), Speech(num_made=4)]
    options: dict[str, Any] = {"num_slots": 256, "now": NOW, "num_expected": 2}
    assert averages.estimate_s(running, [Speech()], **options) == 0.0
    wait_s = averages.estimate_s(running, [Speech()], **options, shares_work=False)
    assert wait_s == pytest.approx(5 * 0.5)


# -- through an engine -----------------------------------------------------------------------


@dataclass
class GatedBackend(ScriptedBackend):
    """Turns wait until `gate` is set."""

    def __post_init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()

    def step(self, slots, num_frames):  # type: ignore[no-untyped-def]
        assert self.gate.wait(60)
        return super().step(slots, num_frames)


def test_engine_reports_wait_for_taken_slots_and_none_afterwards() -> None:
    backend = GatedBackend(max_streams=1)
    engine = Engine(backend, EngineLimits(max_streams=1))
    for seed in range(3):
        list(open_blocks(engine, 20, seed))
    assert engine.capacity().wait_s == 0.0
    backend.gate.clear()
    utterance = submit(engine, 20)
    one_s = engine.capacity().wait_s
    submit(engine, 20)
    both_s = engine.capacity().wait_s
    assert 0.0 < one_s < both_s
    assert engine.capacity(num_expected=5).wait_s > both_s
    engine.cancel(utterance)
    backend.gate.set()


def test_engine_with_full_queue_refuses_new_streams_and_takes_running_ones() -> None:
    backend = GatedBackend(max_streams=1)
    engine = Engine(backend, EngineLimits(max_streams=1, max_queue=0))
    backend.gate.clear()
    submit(engine, 20)
    with pytest.raises(QueueFullError) as caught:
        submit(engine, 20)
    assert caught.value.retry_s > 0
    submit(engine, 20, is_continued=True)
    assert engine.num_running + engine.num_waiting == 2
    backend.gate.set()


def test_stream_that_has_begun_waits_for_a_slot_instead_of_being_refused() -> None:
    backend = SpeakingBackend(max_streams=1)
    text = "This sentence is one of many, and all of them are spoken. " * 12
    with backend.load(max_streams=1, max_queue=0) as tts:
        stream, chunks = tts.stream(text, seed=1), []
        while stream.num_utterances == 0:
            chunks.append(next(stream))
            if not tts.engine.num_running:  # the first utterance is over, the second not begun
                break
        other = tts.stream("Somebody else.", seed=2)
        next(other)
        rest = threading.Thread(target=lambda: chunks.extend(stream))
        rest.start()
        wait_until(lambda: tts.engine.num_waiting == 1 or not rest.is_alive())
        assert rest.is_alive(), "its second utterance was refused"
        with pytest.raises(QueueFullError):
            next(tts.stream("One more.", seed=3))
        other.close()
        rest.join(60)
        assert not rest.is_alive()
        assert chunks[-1].finish_reason == "stop"
        assert stream.num_utterances > 1


def submit(engine: Engine, num_frames: int, *, is_continued: bool = False) -> Utterance:
    done = threading.Event()
    utterance = Utterance(
        prompt=script(num_frames),
        sampling=SamplingParams(seed=1),
        wake=done.set,
        num_text_ids=num_frames // 2,
        is_continued=is_continued,
    )
    engine.submit(utterance)
    engine.request(utterance, 0, num_frames)
    return utterance
