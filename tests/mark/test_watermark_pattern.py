"""Which sounds show the pattern of the mark, and which cannot."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.mark.test_watermark import FakeNetwork
from vivace.mark.watermark_network import MIN_DB, NUM_BINS, RANGE_DB
from vivace.mark.watermark_pattern import mark_pattern, shows_pattern

NUM_FRAMES = 400
PATTERN = mark_pattern(tuple(FakeNetwork().gains_db().tolist()))


def levels(mean_db: Tensor, deviation_db: float = 0.5, top_db: float = 0.0) -> Tensor:
    """Levels that vary around a mean spectrum [128]; the first bin is louder by `top_db`."""
    noise = torch.randn(NUM_BINS, NUM_FRAMES, generator=torch.Generator().manual_seed(1))
    decibels = -60 + mean_db[:, None] + deviation_db * noise
    decibels[0] += top_db
    return (decibels - MIN_DB) / RANGE_DB


def with_own_peaks(correlation: float, size: float) -> Tensor:
    """A mean spectrum of this size, relative to the pattern's, with this correlation."""
    peaks = torch.from_numpy(np.random.default_rng(3).standard_normal(NUM_BINS))
    peaks -= torch.nn.functional.avg_pool1d(peaks[None], 9, 1, 4, count_include_pad=False)[0]
    peaks -= PATTERN * (peaks @ PATTERN) / (PATTERN @ PATTERN)
    own = peaks / peaks.norm() * (1 - correlation**2) ** 0.5
    mixed = correlation * PATTERN / PATTERN.norm() + own
    return size * PATTERN.norm() * mixed


def test_varying_sound_with_the_pattern_shows_it() -> None:
    assert shows_pattern(levels(0.5 * PATTERN, 1.5), PATTERN)
    assert not shows_pattern(levels(-0.5 * PATTERN, 1.5), PATTERN)
    assert not shows_pattern(levels(torch.zeros(NUM_BINS), 1.5), PATTERN)


def test_constant_sound_never_shows_the_pattern() -> None:
    assert not shows_pattern(levels(0.5 * PATTERN, 0.5), PATTERN)


def test_faint_bins_are_no_evidence() -> None:
    assert shows_pattern(levels(0.5 * PATTERN, 1.5, top_db=40), PATTERN)
    assert not shows_pattern(levels(0.5 * PATTERN, 1.5, top_db=90), PATTERN)


@pytest.mark.parametrize(("correlation", "size", "shown"), [
    (0.45, 0.3, True),
    (0.45, 1.1, False),  # peaks of a few notes correlate by chance
    (0.2, 0.3, False),
    (0.8, 1.1, True),
])  # fmt: skip
def test_sound_with_peaks_of_its_own_needs_a_higher_correlation(
    correlation: float, size: float, shown: bool
) -> None:
    sound = levels(with_own_peaks(correlation, size), 1.2)
    assert float(sound.amax()) < 1  # within the levels of the network
    assert shows_pattern(sound, PATTERN) == shown
