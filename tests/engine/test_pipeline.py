"""Work in flight after a failed backend call."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.support.scripted_backend import ScriptedBackend
from vivace.engine.pipeline import FramesInFlight, Pipeline, SamplesInFlight
from vivace.engine.utterance import Utterance


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
        made._frames = FramesInFlight(frames, (), fail)
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
