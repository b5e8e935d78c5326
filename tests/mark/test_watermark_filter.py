"""The filter of the watermark: gains below 2 kHz at any sample rate, without delay."""

from __future__ import annotations

import numpy as np
import pytest

from vivace.audio.wav import Samples
from vivace.mark.watermark_filter import design_filter
from vivace.mark.watermark_network import BIN_HZ, NUM_BINS

RATES = (4_000, 8_000, 11_025, 16_000, 22_050, 24_000, 44_100, 48_000)


def gain_db(taps: Samples, rate: int, frequency: float) -> float:
    turns = np.exp(-2j * np.pi * frequency * np.arange(len(taps)) / rate)
    return float(20 * np.log10(abs(taps @ turns)))


@pytest.mark.parametrize("rate", RATES)
def test_bands_have_their_gains_at_every_rate(rate: int) -> None:
    gains = np.repeat([3.0, -3.0, 2.0, -2.0], NUM_BINS // 4)  # bands of 500 Hz
    taps = design_filter(tuple(gains), rate)
    for band, expected in enumerate((3.0, -3.0, 2.0, -2.0)):
        assert gain_db(taps, rate, 250 + 500 * band) == pytest.approx(expected, abs=0.05)
    for frequency in (f for f in (2_200, 3_500, 7_000, 11_000, 20_000) if f < rate / 2):
        assert gain_db(taps, rate, frequency) == pytest.approx(0.0, abs=0.05)


@pytest.mark.parametrize("rate", RATES)
def test_single_bins_keep_the_sign_of_their_gain(rate: int) -> None:
    gains = np.zeros(NUM_BINS)
    gains[10::20] = 2.0
    gains[20::20] = -2.0
    taps = design_filter(tuple(gains), rate)
    for number in np.flatnonzero(gains):
        found = gain_db(taps, rate, number * BIN_HZ)
        assert 0.5 < found * np.sign(gains[number]) < 2.0


def test_gains_of_zero_change_nothing() -> None:
    taps = design_filter((0.0,) * NUM_BINS, 24_000)
    assert taps[0] == pytest.approx(1.0, abs=1e-6)
    assert np.abs(taps[1:]).max() < 1e-6


def test_filter_is_short_and_ends_at_zero() -> None:
    gains = tuple(np.random.default_rng(1).uniform(-3, 3, NUM_BINS))
    taps = design_filter(gains, 24_000)
    assert len(taps) == 768
    energy = np.cumsum(taps.astype(np.float64) ** 2)
    assert energy[0] / energy[-1] > 0.9  # most of the sound is not delayed
    assert abs(taps[-1]) < 1e-4


def test_shared_filter_cannot_be_written() -> None:
    taps = design_filter((1.0,) * NUM_BINS, 24_000)
    assert design_filter((1.0,) * NUM_BINS, 24_000) is taps
    with pytest.raises(ValueError, match="read-only"):
        taps[0] = 0
