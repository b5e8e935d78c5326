"""Resampling is soxr HQ with librosa's lengths."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import soxr

from vivace.audio.resample import resample
from vivace.errors import AudioError


def tone(rate: int, seconds: float = 1.0) -> np.ndarray:
    time = np.arange(int(rate * seconds)) / rate
    return (0.5 * np.sin(2 * np.pi * 440 * time)).astype(np.float32)


def test_equal_rates_change_nothing() -> None:
    samples = tone(24_000)
    assert resample(samples, 24_000, 24_000) is samples


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 44_100, 48_000, 192_000])
def test_a_tone_stays_the_same_tone(rate: int) -> None:
    output, wanted = resample(tone(rate), rate, 24_000), tone(24_000)
    assert output.dtype == np.float32
    middle = slice(2_000, 22_000)  # the filter rings at both ends
    np.testing.assert_allclose(output[middle], wanted[middle], atol=1e-4)


@pytest.mark.parametrize("rate", [16_000, 44_100, 48_000])
def test_the_samples_are_those_of_soxr_hq(rate: int) -> None:
    wanted = soxr.resample(tone(rate), rate, 24_000, quality="HQ")
    output = resample(tone(rate), rate, 24_000)
    np.testing.assert_array_equal(output[: len(wanted)], wanted)
    assert not output[len(wanted) :].any()


@pytest.mark.parametrize(
    ("rate", "num_samples", "expected"),
    [  # librosa 0.11.0
        (44_100, 44_100, 24_001),
        (44_100, 14_700, 8_001),
        (44_100, 12_345, 6_719),
        (22_050, 22_050, 24_001),
        (16_000, 7, 11),
        (48_000, 1, 1),
        (48_000, 48_000, 24_000),
    ],
)
def test_the_length_is_librosas(rate: int, num_samples: int, expected: int) -> None:
    assert len(resample(np.zeros(num_samples, np.float32), rate, 24_000)) == expected


def test_no_samples_stay_no_samples() -> None:
    assert len(resample(np.zeros(0, np.float32), 16_000, 24_000)) == 0


def test_without_soxr_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soxr", None)
    with pytest.raises(AudioError, match=r"16,000 Hz.*pip install soxr"):
        resample(tone(16_000), 16_000, 24_000)
