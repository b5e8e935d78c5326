"""Attempts: a text is spoken a second time after a runaway, unless its options are pinned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from tests.support.scripted_backend import SpeakingBackend
from vivace.engine.streams.batch import attempts
from vivace.engine.streams.stream import Stream
from vivace.errors import RunawayError
from vivace.speech import MAX_SEED


@dataclass
class FakeStream:
    is_runaway: bool
    num_utterances: int = 1
    finish_reason: str = "stall"


def count_attempts(*streams: FakeStream, given: tuple[str, ...] = ()) -> int:
    waiting = list(streams)
    made = attempts(lambda: cast(Stream, waiting.pop(0)), given)
    num_made = 0
    for _ in made:
        num_made += 1
    return num_made


def test_speech_that_ends_is_not_repeated() -> None:
    assert count_attempts(FakeStream(False)) == 1


def test_runaway_is_repeated_once() -> None:
    assert count_attempts(FakeStream(True), FakeStream(False)) == 2
    assert count_attempts(FakeStream(True), FakeStream(False), given=("voice", "top_k")) == 2


def test_two_runaways_raise_an_error() -> None:
    with pytest.raises(RunawayError, match="twice"):
        count_attempts(FakeStream(True), FakeStream(True))


@pytest.mark.parametrize("given", [("seed",), ("max_frames",), ("voice", "seed")])
def test_runaway_of_a_pinned_request_is_not_repeated(given: tuple[str, ...]) -> None:
    assert count_attempts(FakeStream(True), given=given) == 1


@pytest.mark.parametrize(("num_utterances", "num_attempts"), [(0, 2), (1, 2), (2, 1), (3, 1)])
def test_runaway_of_several_utterances_is_not_repeated(
    num_utterances: int, num_attempts: int
) -> None:
    streams = FakeStream(True, num_utterances), FakeStream(False)
    assert count_attempts(*streams) == num_attempts


@pytest.mark.parametrize(
    ("seed", "expected"), [(5, [5, 6, 7]), (0, [0, 1, 2]), (MAX_SEED, [MAX_SEED, 0, 1])]
)
def test_each_utterance_has_the_next_seed_and_the_largest_wraps(
    seed: int, expected: list[int]
) -> None:
    backend = SpeakingBackend()
    options: dict[str, Any] = {"seed": seed, "guard": False}
    with backend.load() as tts:
        stream = tts.stream("One.[pause 0.1s]Two.[pause 0.1s]Three.", **options)
        assert list(stream)[-1].finish_reason == "stop"
    assert backend.admitted == expected
    assert stream.usage.seed == seed
