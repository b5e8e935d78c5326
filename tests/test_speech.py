"""`SamplingParams`, `SamplingOptions` and `Usage`."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, get_type_hints

import numpy as np
import pytest

from vivace.errors import RequestError
from vivace.speech import BOUNDS, MAX_SEED, WHOLE_NUMBERS, SamplingOptions, SamplingParams, Usage


def test_temperature_zero_makes_both_greedy_unless_predictor_temperature_is_given() -> None:
    assert SamplingParams(temperature=0).residual_temperature == 0
    assert SamplingParams(temperature=0.5).residual_temperature == 0.9
    default = SamplingParams(predictor_temperature=0.7)
    assert default.replace(temperature=0).residual_temperature == 0
    assert default.replace(temperature=0, predictor_temperature=0.4).residual_temperature == 0.4
    assert default.replace(temperature=0.3).residual_temperature == 0.7


def test_numpy_numbers_are_accepted() -> None:
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
def test_value_out_of_range_raises_with_the_field(name: str, value: object) -> None:
    changes: dict[str, Any] = {name: value}
    with pytest.raises(RequestError, match=name):
        SamplingParams(**changes)


def test_bounds_cover_every_sampling_field() -> None:
    assert BOUNDS.keys() == set(SamplingParams.__slots__)


@pytest.mark.parametrize("name", BOUNDS)
def test_sampling_field_at_its_bounds_is_accepted(name: str) -> None:
    for value in (BOUNDS[name].low, BOUNDS[name].high):
        changes: dict[str, Any] = (
            {name: value} if name != "min_frames" else {name: value, "max_frames": 2**31 - 1}
        )
        assert getattr(SamplingParams(**changes), name) == value


@pytest.mark.parametrize("name", BOUNDS)
def test_sampling_field_beyond_its_bounds_is_rejected_with_the_range(name: str) -> None:
    low, high = BOUNDS[name].low, BOUNDS[name].high
    beyond = [low - 1, high + 1] if name in WHOLE_NUMBERS else just_outside(low, high)
    for value in beyond:
        changes: dict[str, Any] = {name: value}
        with pytest.raises(RequestError, match=f"{name} must be .*from .* to .*, not "):
            SamplingParams(**changes)
        with pytest.raises(RequestError, match=name):
            SamplingParams().replace(**changes)


def just_outside(low: float, high: float) -> list[float]:
    nearest = [math.nextafter(low, 0), math.nextafter(high, math.inf)]
    return [*nearest, 1e-40, 5e-324, -low, 3.4e38, 1e300, math.inf, math.nan]


@pytest.mark.parametrize("name", BOUNDS)
def test_zero_is_accepted_if_the_bounds_name_it(name: str) -> None:
    if 0 in BOUNDS[name]:
        assert getattr(SamplingParams(**{name: 0}), name) == 0
    else:
        with pytest.raises(RequestError, match="must be from"):
            SamplingParams(**{name: 0})


def test_times_real_time_is_audio_over_wall_time() -> None:
    usage = Usage(text_tokens=1, frames=25, audio_s=2.0, wall_s=0.5, seed=1)
    assert usage.times_real_time == 4.0


def test_sampling_options_have_the_fields_of_sampling_params() -> None:
    assert get_type_hints(SamplingOptions) == get_type_hints(SamplingParams)


INTEGERS = [np.int8, np.uint8, np.int32, np.int64, np.uint64, int]


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("name", ["seed", "top_k", "predictor_top_k", "min_frames", "max_frames"])
def test_integers_of_any_library_become_int(name: str, kind: type) -> None:
    value = getattr(SamplingParams(**{name: kind(7)}), name)
    assert type(value) is int
    assert value == 7


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, Fraction, int])
@pytest.mark.parametrize("name", ["temperature", "top_p", "repetition_penalty"])
def test_numbers_of_any_library_become_float(name: str, kind: type) -> None:
    value = getattr(SamplingParams(**{name: kind(1)}), name)
    assert type(value) is float
    assert value == 1


@pytest.mark.parametrize("value", [np.bool_(True), np.zeros(2), np.ones(1), 7.0, "7", b"7", [7]])
@pytest.mark.parametrize("name", ["seed", "top_k", "max_frames"])
def test_value_that_is_not_an_integer_raises_with_the_field(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=f"{name} must be a whole number"):
        SamplingParams().replace(**{name: value})


@pytest.mark.parametrize("value", [np.zeros(2), np.bool_(False), "1", None, [1], 1j])
def test_value_that_is_not_a_number_raises_with_the_field(value: object) -> None:
    with pytest.raises(RequestError, match="temperature must be a number"):
        SamplingParams().replace(temperature=value)


@pytest.mark.parametrize("name", ["seed", "top_k", "temperature", "top_p"])
def test_number_of_thousands_of_digits_raises_a_short_message(name: str) -> None:
    with pytest.raises(RequestError, match=name) as refusal:
        SamplingParams(**{name: 10**6_000})
    assert len(str(refusal.value)) < 200
