"""What is left in flight after a call of the backend failed."""

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
    return [cast(Utterance, object())]  # told apart by identity only


def pipeline(*, frames: list[Utterance] | None, samples: list[Utterance] | None) -> Pipeline:
    """A pipeline in which these wait for frames and for samples; both fail."""
    made = Pipeline(ScriptedBackend())
    if frames is not None:
        made._frames = FramesInFlight(frames, (), fail)
    if samples is not None:
        made._samples = SamplesInFlight(samples, (), cast(Any, None), fail)
    return made


def test_failed_frames_are_dropped_and_their_utterances_given_up() -> None:
    lost = utterances()
    made = pipeline(frames=lost, samples=None)
    with pytest.raises(Lost):
        made.run((), (), 1)
    assert made.give_up() is lost
    assert not made.is_busy
    assert made.give_up() == ()


def test_frames_of_others_stay_in_flight_when_samples_fail() -> None:
    lost, others = utterances(), utterances()
    made = pipeline(frames=others, samples=lost)
    with pytest.raises(Lost):
        made.run((), (), 1)
    assert made.give_up() is lost
    assert not made.is_rendering
    assert made.is_busy  # with the frames of the others
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
