"""Sampling arguments are checked once, when they are given."""

from __future__ import annotations

import numpy as np
import pytest

from vivace.errors import RequestError
from vivace.speech import MAX_SEED, SamplingParams, Usage


def test_temperature_zero_makes_both_greedy_unless_the_predictor_is_told_otherwise() -> None:
    assert SamplingParams(temperature=0).residual_temperature == 0
    assert SamplingParams(temperature=0.5).residual_temperature == 0.9
    default = SamplingParams(predictor_temperature=0.7)
    assert default.replace(temperature=0).residual_temperature == 0
    assert default.replace(temperature=0, predictor_temperature=0.4).residual_temperature == 0.4
    assert default.replace(temperature=0.3).residual_temperature == 0.7


def test_numbers_of_numpy_are_numbers() -> None:
    params = SamplingParams(seed=np.int64(7), temperature=np.float32(0.5), top_k=np.int32(3))
    assert (params.seed, params.top_k) == (7, 3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", "hot"),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("repetition_penalty", 0.0),
        ("predictor_temperature", float("inf")),
        ("predictor_top_p", 0),
        ("min_frames", -1),
        ("max_frames", 0),
        ("seed", -1),
        ("seed", MAX_SEED + 1),
        ("seed", True),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=name):
        SamplingParams(**{name: value})


def test_real_time_is_audio_over_waiting() -> None:
    usage = Usage(text_tokens=1, frames=25, audio_s=2.0, wall_s=0.5, seed=1)
    assert usage.times_real_time == 4.0
