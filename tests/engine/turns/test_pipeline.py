"""Work in flight after a failed backend call, and the measured time of frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.scripted_backend import ScriptedBackend, script
from vivace.backends.base import Frames, Slot
from vivace.engine.turns import pipeline as pipeline_module
from vivace.engine.turns.pipeline import FramesInFlight, Pipeline, SamplesInFlight
from vivace.engine.utterances.utterance import Utterance
from vivace.speech import SamplingParams


class Lost(Exception):
    pass


def fail() -> Any:
    raise Lost


def utterances() -> list[Utterance]:
    return [cast(Utterance, object())]  # only compared by identity


def pipeline(*, frames: list[Utterance] | None, samples: list[Utterance] | None) -> Pipeline:
    """A pipeline with these utterances in flight. Waiting for frames or samples raises."""
    made = Pipeline(ScriptedBackend())
    if frames is not None:
        made._frames.append(FramesInFlight(frames, (), fail, 0.0))
    if samples is not None:
        made._samples = SamplesInFlight(samples, (), cast(Any, None), fail)
    return made


def test_failed_frames_are_dropped_with_their_utterances() -> None:
    lost = utterances()
    made = pipeline(frames=lost, samples=None)
    with pytest.raises(Lost):
        made.run((), (), 1)
    assert made.give_up() is lost
    assert not made.is_busy
    assert made.give_up() == ()


def test_frames_stay_in_flight_when_other_samples_fail() -> None:
    lost, others = utterances(), utterances()
    made = pipeline(frames=others, samples=lost)
    with pytest.raises(Lost):
        made.run((), (), 1)
    assert made.give_up() is lost
    assert not made.is_rendering
    assert made.is_busy  # the frames of the other utterances
    with pytest.raises(Lost):
        made.run((), (), 1)
    assert made.give_up() is others
    assert not made.is_busy


def test_frames_and_samples_of_the_same_utterances_are_both_dropped() -> None:
    lost = utterances()
    made = pipeline(frames=lost, samples=lost)
    with pytest.raises(Lost):
        made.run((), (), 1)
    assert made.give_up() is lost
    assert not made.is_busy


class TimedBackend(ScriptedBackend):
    """Takes 10 s to start a step and 2 s for each requested frame."""

    now = 0.0

    def start_step(self, slots: Sequence[Slot], num_frames: int) -> Callable[[], Frames]:
        self.now += 10.0

        def wait() -> Frames:
            self.now += 2.0 * num_frames
            return self.step(slots, num_frames)

        return wait


def test_time_of_a_frame_is_measured_from_the_start_of_its_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = TimedBackend()
    clock = SimpleNamespace(perf_counter=lambda: backend.now)
    monkeypatch.setattr(pipeline_module, "time", clock)
    made = Pipeline(backend)
    one = Utterance(prompt=script(7), sampling=SamplingParams(seed=1), wake=lambda: None)
    assert made.step_s == 0.0
    made.run([one], [one], 5)
    assert made.step_s == pytest.approx(4.0)  # 20 s, 5 frames
    made.run([], [], 0)
    made.run([], [one], 5)
    assert made.step_s == pytest.approx(10.0)  # 20 s, the last 2 frames
    made.run([], [], 0)
    made.run([], [one], 5)  # no frame is left
    assert made.step_s == pytest.approx(10.0)
