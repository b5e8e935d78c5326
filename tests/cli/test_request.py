"""Tests of numeric options at and beyond their bounds."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.support.cli_harness import Captured, say
from vivace.dialogue.talk import MAX_GAP_S, LineSpacing
from vivace.errors import RequestError
from vivace.speech import BOUNDS, WHOLE_NUMBERS

TEXT = "Hello there."


def flag(name: str, value: float) -> str:
    return f"--{name.replace('_', '-')}={value}"


@pytest.mark.parametrize("edge", ["low", "high"])
def test_sampling_options_at_bounds_are_accepted(
    tiny_folder: Path, tmp_path: Path, edge: str
) -> None:
    out = tmp_path / "out.wav"
    values = {name: getattr(bounds, edge) for name, bounds in BOUNDS.items()}
    values |= {} if edge == "low" else {"min_frames": 3, "max_frames": 3}  # limits the duration
    options = [flag(name, value) for name, value in values.items()]
    assert say(tiny_folder / "custom_voice", TEXT, "-o", out, *options) == 0
    assert out.stat().st_size > 44


@pytest.mark.parametrize("name", [*BOUNDS, "speed"])
def test_sampling_option_out_of_bounds_fails_with_its_name(
    tiny_folder: Path, tmp_path: Path, capsys: Captured, name: str
) -> None:
    low, high = (BOUNDS[name].low, BOUNDS[name].high) if name in BOUNDS else (0.25, 4.0)
    beyond = [low - 1, high + 1]
    if name not in WHOLE_NUMBERS:
        beyond = [math.nextafter(low, 0), math.nextafter(high, math.inf), 1e-40]
    out = tmp_path / "out.wav"
    for value in beyond:
        assert say(tiny_folder / "custom_voice", TEXT, "-o", out, flag(name, value)) == 1
        assert f"{name.replace('_', '-')} must be " in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("name", ["gap_s", "overlap_s"])
def test_gap_and_overlap_are_limited(name: str) -> None:
    for value in (0, 0.0, MAX_GAP_S):
        assert getattr(LineSpacing(**{name: value}), name) == value
    for value in (math.nextafter(0, -1), math.nextafter(MAX_GAP_S, math.inf), math.inf, math.nan):
        with pytest.raises(RequestError, match=f"{name} must be from 0 to 10"):
            LineSpacing(**{name: value})


@pytest.mark.parametrize(("value", "code"), [(1, 0), (2**40, 0), (0, 1), (-1, 1)])
def test_chunk_frames_below_1_fail(
    tiny_folder: Path, tmp_path: Path, value: int, code: int
) -> None:
    out = tmp_path / "out.wav"
    options = ("--max-frames=3", "--seed=1", f"--chunk-frames={value}")
    assert say(tiny_folder / "custom_voice", TEXT, "-o", out, *options) == code
